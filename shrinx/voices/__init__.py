"""Voices: a bank made from a speech run, in which a task is a speaker.

data/prosody.py (how a speaker times and tunes phones) -> enrolment.py (recordings -> a voice) -> speaking.py

from shrinx.voices import enrol, say, script_of_digits
"""

from .enrolment import enrol as enrol
from .model import VoiceModel as VoiceModel
from .speaking import say as say
from .speaking import script_of_digits as script_of_digits
from .speaking import script_of_recording as script_of_recording
