"""The public names, and where each of them is."""

from .beam_search import decode as decode
from .beam_search import stream as stream
from .cached import CachedDecoder as CachedDecoder
from .decoder import DecoderModel as DecoderModel
from .options import GeneratedText as GeneratedText
from .options import GenerationConfig as GenerationConfig
from .options import Prompt as Prompt
from .options import RowState as RowState
from .options import SamplingOptions as SamplingOptions
from .options import SearchOptions as SearchOptions
from .recurrent import RecurrentDecoder as RecurrentDecoder
from .served import ServedGenerator as ServedGenerator
