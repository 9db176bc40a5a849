"""Reports: figures, tables and one self-contained page, made from the folders of finished runs and nothing else.

    load.py (folder -> LoadedRun)
      -> sentences.py, tables.py, *_figures.py, comparison.py (words, numbers, figures of it)
      -> gallery.py (figures with titles and what captions.py says of them) -> svg.py
      -> page.py, side_by_side.py (one HTML text, made of the parts in markup.py) -> write.py (files)

Runs of several conditions: conditions.py (scores against what tells the conditions apart).
Speech runs: voices.py (what is said, how it was judged) -> speech.py (figures, tables), players.py (sound in the page),
goals.py (what must hold, and whether it does).

Only this package imports matplotlib, which is an optional dependency.
"""
