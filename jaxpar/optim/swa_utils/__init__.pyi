from ._averaged_model import SWALR as SWALR
from ._averaged_model import AveragedModel as AveragedModel
from ._averaged_model import get_ema_avg_fn as get_ema_avg_fn
from ._averaged_model import get_ema_multi_avg_fn as get_ema_multi_avg_fn
from ._averaged_model import get_swa_avg_fn as get_swa_avg_fn
from ._averaged_model import get_swa_multi_avg_fn as get_swa_multi_avg_fn
from ._averaged_model import update_bn as update_bn
