from ._discrete import Bernoulli as Bernoulli
from ._discrete import Categorical as Categorical
from ._distribution import Distribution as Distribution
from ._independent import Independent as Independent
from ._kl import kl_divergence as kl_divergence
from ._normal import Normal as Normal
