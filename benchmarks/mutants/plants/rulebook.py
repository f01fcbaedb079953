"""Mistakes in how torch's weights become Flax's."""

# fmt: off
from ..plant import plants

PLANTS = [
    *plants("jaxpar/_rulebook/lookup.py",
        ('rule_for(layer.layer) or parametrized.of_users(layer.layer)', 'rule_for(layer.layer)', "tests/test_port_habits.py::test_ports_are_the_same[Rescaled]"),
    ),
    *plants("jaxpar/_rulebook/recurrent.py",
        ('lambda a, b: (a + b,),\n        lambda b: (b, np.zeros_like(b)),', 'lambda a, b: (a,),\n        lambda b: (b, np.zeros_like(b)),', "tests/test_rulebook.py -m \"not long\" -k \"outputs or merged\""),
        ('lambda *parts: (np.concatenate(parts, 1).T,)', 'lambda *parts: (np.concatenate(parts[::-1], 1).T,)', "tests/test_rulebook.py -m \"not long\" -k there_and_back"),
        ('return ar + br, az + bz, an, bn', 'return ar + br, az + bz, an + bn, bn', "tests/test_rulebook.py -m \"not long\" -k outputs"),
        ('tuple(f"h{gate}.kernel" for gate in "ifgo")', 'tuple(f"h{gate}.kernel" for gate in "figo")', "tests/test_rulebook.py -m \"not long\" -k outputs"),
        ('if np.any(hn != 0)', 'if np.all(hn != 0)', "tests/test_rulebook.py -m \"not long\" -k b_hn"),
        ('return np.concatenate([r, z, n]), np.concatenate([r, z, hn])', 'return np.concatenate([r, z, n]), np.concatenate([r, z, n])', "tests/test_rulebook.py -m \"not long\" -k outputs"),
        ('for k in range(layer.num_layers) for end in directions', 'for end in directions for k in range(layer.num_layers)', "tests/test_rulebook.py", 0, "the parts of a rule are found by their names, so their order means nothing"),
    ),
    *plants("jaxpar/_rulebook/keras.py",
        ('moved.reshape(*moved.shape[:-1], -1, M)', 'moved.reshape(*moved.shape[:-1], M, -1).swapaxes(-1, -2)', "tests/test_keras.py::test_a_layer_is_the_same_as_torchs_and_a_planted_mistake_is_not[DepthwiseConv2D]"),
        ('return np.concatenate([z, r, n])', 'return np.concatenate([r, z, n])', "tests/test_keras.py::test_a_layer_is_the_same_as_torchs_and_a_planted_mistake_is_not[GRU]"),
        ('kernel("weight_hh", "recurrent_kernel")', 'Part(("weight_hh",), ("recurrent_kernel",), lambda w: (w.T[::-1],), lambda k: (k[::-1].T,))', "tests/test_keras.py::test_a_layer_is_the_same_as_torchs_and_a_planted_mistake_is_not[LSTM]"),
        ('"query_dense", "key_dense", "value_dense"', '"key_dense", "query_dense", "value_dense"', "tests/test_keras.py::test_a_layer_is_the_same_as_torchs_and_a_planted_mistake_is_not[MultiHeadAttention]"),
    ),
    *plants("jaxpar/_rulebook/dense.py",
        ('w.T.reshape(*into, *out)', 'w.reshape(*into, *out)', "tests/test_rulebook.py -m \"not long\" -k outputs"),
        ('(k.reshape(-1, rows).T,)', '(k.reshape(rows, -1),)', "tests/test_rulebook.py -m \"not long\" -k there_and_back"),
    ),
    *plants("jaxpar/_rulebook/parametrized.py",
        ('back(np.expand_dims(v, axis))[0].reshape(-1)', 'v.reshape(-1)', "tests/test_weight_norm.py tests/test_rulebook.py -k \"spectral or there_and_back\""),
        ('tuple(shape[a] if a == axis else 1 for a in range(len(shape)))', 'tuple(shape[a] if a != axis else 1 for a in range(len(shape)))', "tests/test_weight_norm.py -k originals_there"),
    ),
    *plants("jaxpar/_rulebook/normalisation.py",
        ('RUNNING = (same("running_mean", "mean"), same("running_var", "var"))', 'RUNNING = (same("running_mean", "var"), same("running_var", "mean"))', "tests/test_rulebook.py -m \"not long\" -k outputs"),
        ('RMS_NORM = Rule("RMSNorm", AFFINE[:1])', 'RMS_NORM = Rule("RMSNorm", AFFINE[1:])', "tests/test_rulebook.py -m \"not long\" -k outputs"),
    ),
]
