"""What generated speech is judged by, besides its likelihood: one file each, and each needs only its own package.

`pip install 'shrinx[speech-metrics]'`. All take waves at 16 kHz as floats between -1 and 1.
"""
