"""The public names, and where each of them is."""

from .beam_search import decode as decode
from .beam_search import stream as stream
from .cached import CachedDecoder as CachedDecoder
from .decoder import DecoderModel as DecoderModel
from .generation_config import GeneratedText as GeneratedText
from .generation_config import GenerationConfig as GenerationConfig
from .generation_config import Prompt as Prompt
from .generation_config import SamplingOptions as SamplingOptions
from .generation_config import SearchOptions as SearchOptions
from .recurrent import RecurrentDecoder as RecurrentDecoder
from .row_state import RowState as RowState
from .served import ServedGenerator as ServedGenerator
