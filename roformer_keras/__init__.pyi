"""The public names, and where each of them is."""

from . import callbacks as callbacks
from . import layers as layers
from . import losses as losses
from . import metrics as metrics
from . import optimizers as optimizers
from . import search as search
from .base.config import RoFormerConfig as RoFormerConfig
from .base.errors import RoFormerError as RoFormerError
from .conversion.convert import convert as convert
from .conversion.push import push_to_hub as push_to_hub
from .hub.catalog import CATALOG as CATALOG
from .hub.catalog import SHIPPED as SHIPPED
from .hub.download import download as download
from .models import FastModel as FastModel
from .models import RoFormerBackbone as RoFormerBackbone
from .models import RoFormerCausalLM as RoFormerCausalLM
from .models import RoFormerMaskedLM as RoFormerMaskedLM
from .models import RoFormerSim as RoFormerSim
from .tables.corpus import CorpusSource as CorpusSource
from .tasks import RoFormerMultipleChoice as RoFormerMultipleChoice
from .tasks import RoFormerQuestionAnswerer as RoFormerQuestionAnswerer
from .tasks import RoFormerRelationExtractor as RoFormerRelationExtractor
from .tasks import RoFormerSentenceEncoder as RoFormerSentenceEncoder
from .tasks import RoFormerSpanExtractor as RoFormerSpanExtractor
from .tasks import RoFormerTextClassifier as RoFormerTextClassifier
from .tasks import RoFormerTextRegressor as RoFormerTextRegressor
from .tasks import RoFormerTokenClassifier as RoFormerTokenClassifier
from .tasks import RoFormerTripletRanker as RoFormerTripletRanker
from .tasks.finetuned import load_finetuned as load_finetuned
from .tasks.finetuning_settings import FinetuningSettings as FinetuningSettings
from .tasks.load import load_model as load_model
from .tasks.optimizer_settings import OptimizerSettings as OptimizerSettings
from .text.tokenizer import RoFormerTokenizer as RoFormerTokenizer
from .training.finetune import finetune as finetune
from .training.pretrain import pretrain as pretrain
from .training.pretraining_settings import PretrainingSettings as PretrainingSettings
from .training.pretraining_settings import TrainingStage as TrainingStage
from .verification.verify import verify as verify

__version__: str
