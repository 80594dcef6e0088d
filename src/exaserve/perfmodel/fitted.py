"""Constants of the performance model and the errors of its predictions, made by ``scripts/fit_speed.py``.

:mod:`exaserve.perfmodel.constants` says what they mean; what is not here is as expected there.
"""

from __future__ import annotations

from collections.abc import Mapping

from exaserve.perfmodel.confidence import Errors, parse_errors
from exaserve.perfmodel.constants import parse_constants

__all__ = ["ERRORS", "FITTED"]

FITTED: Mapping[str, float] = parse_constants("""
accepted/1 1.84
attention-matrix-engine/llamacpp 0.27
attention-matrix-engine/sglang 0.379
attention-matrix-engine/vllm 1.28
attention-matrix/ada 0.301
attention-matrix/ampere 0.332
attention-matrix/blackwell 0.248
attention-matrix/hopper 0.345
attention/ada 0.696
attention/blackwell 1
attention/hopper 0.901
bandwidth-card/A100-40 0.953
bandwidth-card/A100-80 0.919
bandwidth-card/A100-80-PCIE 0.942
bandwidth-card/A40 1.02
bandwidth-card/B200 0.977
bandwidth-card/B300 1.09
bandwidth-card/H100 1.09
bandwidth-card/H100-PCIE 0.953
bandwidth-card/H200 0.967
bandwidth-card/L4 0.981
bandwidth-card/MI300X 0.976
bandwidth-card/RTX-3090 1.06
bandwidth-card/RTX-3090-TI 1.1
bandwidth-card/RTX-4090 1.05
bandwidth-format/fp8-block/blackwell 0.706
bandwidth-format/fp8/ada 0.869
bandwidth-format/fp8/blackwell 1.12
bandwidth-format/fp8/cdna3 0.906
bandwidth-format/fp8/hopper 1.09
bandwidth-format/int4/ada 0.867
bandwidth-format/int4/ampere 0.877
bandwidth-format/int4/hopper 0.719
bandwidth/ada 0.94
bandwidth/blackwell 0.876
bandwidth/hopper 0.943
experts-engine/sglang/ampere 0.924
experts-engine/sglang/blackwell 1.37
experts-engine/sglang/cdna3 0.862
experts-engine/sglang/hopper 0.837
experts-engine/sglang/mxfp4 0.766
experts-engine/sglang/nvfp4 1.13
experts-engine/trtllm/ampere 0.887
experts-engine/trtllm/bf16 0.902
experts-engine/trtllm/fp8 0.711
experts-engine/trtllm/fp8-block 1.13
experts-engine/trtllm/hopper 1.05
experts-engine/trtllm/mxfp4 1.29
experts-engine/vllm/bf16 1.12
experts-engine/vllm/blackwell 1.26
experts-engine/vllm/mxfp4 1.15
experts-matrix/bf16/ampere 0.547
experts-matrix/bf16/blackwell 0.326
experts-matrix/bf16/hopper 0.517
experts-matrix/fp8-block/blackwell 0.177
experts-matrix/fp8-block/cdna3 0.259
experts-matrix/fp8-block/hopper 0.125
experts-matrix/fp8/ada 0.378
experts-matrix/fp8/hopper 0.441
experts-matrix/int4/hopper 0.237
experts-matrix/mxfp4/ampere 0.367
experts-matrix/mxfp4/blackwell 0.187
experts-matrix/mxfp4/hopper 0.21
experts-matrix/nvfp4/blackwell 0.16
experts-skew 0.875
experts-whole 0.932
experts/bf16/ampere 0.534
experts/bf16/blackwell 0.981
experts/fp8-block/blackwell 0.856
experts/fp8-block/cdna3 0.501
experts/fp8-block/hopper 1.03
experts/fp8/hopper 0.311
experts/mxfp4/ampere 0.631
experts/mxfp4/blackwell 1.02
experts/nvfp4/blackwell 0.97
first/sglang 0.0347
first/trtllm 0.0432
first/vllm 0.0182
layer-engine/llamacpp/ada 0.818
layer-engine/llamacpp/ampere 1.29
layer-engine/llamacpp/bf16 1.43
layer-engine/llamacpp/hopper 1.13
layer-engine/llamacpp/int4 0.835
layer-engine/other/ampere 0.944
layer-engine/other/int4 0.876
layer-engine/sglang/ampere 1.29
layer-engine/sglang/bf16 0.754
layer-engine/sglang/blackwell 0.942
layer-engine/sglang/cdna3 1.11
layer-engine/sglang/fp8 1.33
layer-engine/sglang/fp8-block 1.06
layer-engine/sglang/hopper 0.794
layer-engine/sglang/mxfp4 1.05
layer-engine/trtllm/ampere 0.875
layer-engine/trtllm/bf16 1.32
layer-engine/trtllm/blackwell 1.37
layer-engine/trtllm/fp8-block 1.35
layer-engine/trtllm/hopper 0.829
layer-engine/trtllm/mxfp4 0.731
layer-engine/trtllm/nvfp4 0.792
layer-engine/vllm/ampere 1.17
layer-engine/vllm/bf16 0.924
layer-engine/vllm/blackwell 0.866
layer-engine/vllm/fp8 0.905
layer-engine/vllm/fp8-block 1.78
layer-engine/vllm/hopper 1.07
layer-engine/vllm/int4 0.824
layer-engine/vllm/mxfp4 0.957
layer-release/llamacpp/any 1.19
layer-release/other/any 0.908
layer-release/sglang/0.5.6 1.37
layer-release/sglang/0.5.7 0.788
layer-release/trtllm/0 1.22
layer-release/trtllm/1.0-1.1 1.15
layer-release/trtllm/1.2 0.723
layer-release/vllm/0.18 0.682
layer-release/vllm/0.7 1.52
layer-release/vllm/0.8-0.11 1.06
layer/llamacpp 9.09e-05
layer/other 3.06e-05
layer/sglang 6.13e-05
layer/vllm 6.94e-05
link/nvlink/blackwell 0.341
link/nvlink/hopper 0.519
link/pcie/ada 0.628
link/pcie/ampere 0.467
link/xgmi/cdna3 0.243
matrix-engine/llamacpp 0.6
matrix-engine/sglang 1.26
matrix-engine/trtllm 1.19
matrix-engine/vllm 0.862
matrix-halves 2.31
matrix/bf16/ada 0.74
matrix/bf16/ampere 0.667
matrix/bf16/blackwell 0.428
matrix/bf16/hopper 0.743
matrix/fp8-block/blackwell 0.373
matrix/fp8-block/hopper 0.424
matrix/fp8/blackwell 0.552
matrix/fp8/cdna3 0.561
matrix/fp8/hopper 0.549
matrix/int4/ada 0.433
matrix/int4/hopper 0.302
meeting/sglang/even 0.629
meeting/sglang/spread 0.856
meeting/trtllm/spread 0.964
meeting/vllm/even 0.918
meeting/vllm/spread 0.822
mla 4.67e-05
moe-engine/sglang/bf16 0.931
moe-engine/sglang/blackwell 0.676
moe-engine/sglang/cdna3 1.81
moe-engine/sglang/fp8-block 1.6
moe-engine/sglang/hopper 0.865
moe-engine/sglang/nvfp4 0.693
moe-engine/trtllm/blackwell 0.651
moe-engine/trtllm/fp8 1.14
moe-engine/trtllm/fp8-block 0.592
moe-engine/trtllm/hopper 1.49
moe-engine/trtllm/mxfp4 1.44
moe-engine/vllm/blackwell 1.08
moe-engine/vllm/fp8-block 0.875
moe-engine/vllm/hopper 0.87
moe-engine/vllm/int4 0.894
moe-engine/vllm/mxfp4 1.08
moe-engine/vllm/nvfp4 1.09
moe-release/sglang/0.5.6 0.7
moe-release/sglang/0.5.7 1.52
moe-release/trtllm/1.0-1.1 1.43
moe-release/trtllm/1.2 0.721
moe-release/vllm/0.12-0.17 0.564
moe-release/vllm/0.18 1.44
moe-release/vllm/0.8-0.11 1.15
moe-whole/vllm 0.869
moe/sglang 3.8e-05
moe/vllm 2.25e-05
overlap 0.846
prompt-moe/sglang 0.00134
prompt-moe/trtllm 4.59e-05
prompt-moe/vllm 0.000104
prompt/llamacpp 8.47e-05
prompt/sglang 4.26e-05
prompt/trtllm 5.51e-05
reduce-pcie 2.76
reduce-ranks/1 0.689
reduce-ranks/2 1.05
reduce-ranks/4 0.885
reduce-ranks/8 1.06
reduce/ada 4.86e-06
reduce/ampere 4.84e-06
reduce/blackwell 3.96e-06
reduce/cdna3 6.84e-06
reduce/hopper 4.6e-06
sequence/sglang 2.07e-05
sequence/trtllm 1.43e-05
state 1.45e-05
""")

ERRORS: Mapping[str, Mapping[str, Errors]] = parse_errors("""
among few |  | 278 80 | 0.70 0.78 0.88 0.95 1.02 1.09 1.18 1.42 1.70 2.24 3.00
among few | B200, dense | 21 7 | 0.69 0.73 0.82 0.96 1.02 1.08 1.16 1.54 1.69 1.92 2.30
among few | B200, fp8-block, mixture | 36 8 | 0.66 1.02 1.07 1.14 1.34 1.47 1.74 1.94 2.10 2.56 3.56
among few | B200, fp8-block, mixture, sglang | 14 5 | 0.06 0.33 1.06 1.10 1.26 1.46 1.62 1.77 2.08 2.14 2.16
among few | B200, mixture | 86 24 | 0.57 0.82 0.91 1.02 1.08 1.17 1.43 1.77 2.09 2.61 3.58
among few | B200, mxfp4, mixture | 15 5 | 0.49 0.53 0.71 0.83 0.86 0.91 0.97 0.99 1.01 1.05 1.10
among few | B200, nvfp4, dense | 12 4 | 0.66 0.70 0.74 0.82 0.88 1.06 1.13 1.24 1.60 1.93 2.50
among few | B200, nvfp4, mixture | 35 11 | 0.72 0.85 0.90 1.07 1.14 1.19 1.75 2.02 2.32 2.97 5.53
among few | B200, nvfp4, mixture, trtllm | 10 4 | 0.81 0.87 1.00 1.11 1.32 1.78 1.88 2.01 2.34 2.89 2.99
among few | B200, nvfp4, mixture, vllm | 14 4 | 0.85 0.85 0.88 0.92 1.04 1.12 1.17 1.23 1.59 2.27 2.35
among few | B300, fp8-block, mixture | 20 8 | 0.67 0.89 0.94 0.96 1.05 1.08 1.14 1.17 1.67 4.44 5.83
among few | B300, fp8-block, mixture, sglang | 11 5 | 0.55 0.77 1.06 1.08 1.15 1.20 1.47 1.70 3.29 5.74 6.08
among few | B300, mixture | 42 16 | 0.89 0.92 0.94 0.96 1.03 1.07 1.10 1.17 1.32 2.73 4.82
among few | B300, nvfp4, mixture | 18 6 | 0.92 0.94 0.96 1.00 1.03 1.06 1.10 1.20 1.27 2.73 3.38
among few | H100, dense | 13 5 | 0.73 0.74 0.78 0.80 0.83 0.84 0.87 0.90 1.12 2.27 6.15
among few | H100, mixture | 23 6 | 0.70 0.70 0.77 0.83 0.96 1.12 1.28 1.54 1.66 1.92 1.98
among few | H100, mxfp4, mixture | 11 4 | 0.70 0.70 0.71 0.74 0.77 0.81 0.84 0.87 1.00 1.08 1.11
among few | H100, mxfp4, mixture, vllm | 11 4 | 0.70 0.70 0.71 0.74 0.77 0.81 0.84 0.87 1.00 1.08 1.11
among few | H200, dense | 15 5 | 0.77 0.82 0.83 0.85 0.88 0.91 0.92 0.94 0.99 2.51 2.85
among few | H200, fp8, dense | 15 5 | 0.77 0.82 0.83 0.85 0.88 0.91 0.92 0.94 0.99 2.51 2.85
among few | H200, fp8-block, mixture | 40 8 | 0.84 0.91 1.00 1.10 1.18 1.34 1.51 1.62 1.80 2.86 4.81
among few | H200, mixture | 76 16 | 0.79 0.88 0.95 1.00 1.09 1.13 1.34 1.44 1.62 1.80 2.86
among few | H200, mxfp4, mixture | 27 7 | 0.77 0.82 0.92 0.95 0.97 1.00 1.09 1.30 1.42 1.62 1.64
among few | H200, mxfp4, mixture, trtllm | 18 4 | 0.77 0.78 0.94 1.00 1.09 1.19 1.36 1.45 1.61 1.63 1.66
among few | blackwell, dense | 21 7 | 0.69 0.73 0.82 0.96 1.02 1.08 1.16 1.54 1.69 1.92 2.30
among few | blackwell, fp8-block, mixture | 56 16 | 0.74 0.94 1.03 1.08 1.13 1.19 1.44 1.72 2.07 2.67 4.44
among few | blackwell, mixture | 128 40 | 0.68 0.85 0.94 0.98 1.06 1.11 1.18 1.45 1.99 2.67 3.76
among few | blackwell, mxfp4, mixture | 15 5 | 0.49 0.53 0.71 0.83 0.86 0.91 0.97 0.99 1.01 1.05 1.10
among few | blackwell, nvfp4, dense | 12 4 | 0.66 0.70 0.74 0.82 0.88 1.06 1.13 1.24 1.60 1.93 2.50
among few | blackwell, nvfp4, mixture | 53 17 | 0.82 0.87 0.95 1.03 1.08 1.16 1.23 1.75 2.24 3.00 3.57
among few | dense | 49 17 | 0.73 0.75 0.82 0.84 0.88 0.92 0.98 1.10 1.56 1.96 2.63
among few | hopper, dense | 28 10 | 0.75 0.76 0.81 0.83 0.85 0.87 0.91 0.93 1.01 2.23 3.23
among few | hopper, fp8, dense | 24 8 | 0.74 0.75 0.79 0.83 0.85 0.87 0.89 0.92 0.94 1.11 2.64
among few | hopper, fp8-block, mixture | 52 10 | 0.86 0.95 1.07 1.15 1.30 1.46 1.58 1.66 1.81 2.60 4.46
among few | hopper, mixture | 99 22 | 0.74 0.79 0.93 0.97 1.09 1.13 1.31 1.49 1.62 1.81 2.65
among few | hopper, mxfp4, mixture | 38 11 | 0.70 0.75 0.79 0.86 0.93 0.97 1.01 1.09 1.32 1.60 1.63
among few | mixture | 229 63 | 0.70 0.82 0.93 0.97 1.06 1.12 1.26 1.45 1.75 2.24 3.30
first |  | 59 29 | 0.63 0.71 0.82 0.89 0.97 1.01 1.05 1.11 1.18 1.51 2.44
first | A100-80, bf16, dense | 8 5 | 0.71 0.76 0.87 0.87 0.95 1.02 1.06 1.14 5.62 10.36 11.90
first | A100-80, dense | 10 6 | 0.71 0.79 0.87 0.92 1.02 1.04 1.06 1.11 2.59 9.54 11.81
first | L40S, dense | 6 4 | 0.93 0.93 0.93 0.94 0.97 1.03 1.11 1.12 1.16 1.26 1.28
first | ada, dense | 16 7 | 0.59 0.61 0.69 0.76 0.84 0.93 1.01 1.12 1.23 1.42 1.57
first | ampere, bf16, dense | 12 7 | 0.72 0.75 0.82 0.87 0.90 1.01 1.01 1.04 1.20 8.79 11.33
first | ampere, dense | 26 13 | 0.71 0.74 0.86 0.88 0.94 1.01 1.02 1.08 1.14 1.58 8.61
first | ampere, int4, dense | 14 6 | 0.66 0.74 0.88 0.90 0.95 1.01 1.04 1.10 1.15 1.39 1.56
first | dense | 57 27 | 0.62 0.70 0.81 0.90 0.97 1.01 1.05 1.12 1.21 1.54 2.45
first | hopper, dense | 15 7 | 0.58 0.90 0.96 0.99 1.02 1.08 1.10 1.14 1.43 2.27 2.46
first | hopper, fp8, dense | 7 4 | 0.51 0.58 0.93 0.98 0.99 1.00 1.03 1.07 1.11 1.12 1.12
offline |  | 290 68 | 0.40 0.58 0.73 0.87 0.94 0.99 1.04 1.12 1.16 1.28 1.39
offline | A100-80, bf16, dense | 24 5 | 0.74 0.81 0.90 0.93 0.97 1.00 1.04 1.13 1.16 1.48 1.82
offline | A100-80, bf16, dense, trtllm | 19 4 | 0.79 0.84 0.90 0.94 0.97 1.00 1.08 1.14 1.16 1.55 1.93
offline | A100-80, dense | 28 9 | 0.77 0.85 0.91 0.93 0.96 0.98 1.02 1.06 1.16 1.40 1.70
offline | A100-80, mixture | 29 6 | 0.16 0.57 0.82 0.95 1.01 1.10 1.12 1.13 1.27 1.31 1.56
offline | A100-80, mxfp4, mixture | 26 4 | 0.10 0.56 0.67 0.89 1.01 1.09 1.12 1.13 1.16 1.31 1.60
offline | B200, mixture | 25 5 | 0.46 0.48 0.61 0.64 0.70 0.74 0.77 0.86 0.99 1.11 1.35
offline | H100, bf16, dense | 6 4 | 0.37 0.37 0.50 0.59 0.59 0.60 0.62 0.67 0.75 0.91 0.95
offline | H100, bf16, mixture | 15 5 | 0.50 0.75 0.82 0.97 0.99 1.02 1.06 1.11 1.12 1.15 1.16
offline | H100, dense | 23 8 | 0.38 0.43 0.50 0.60 0.65 0.91 0.93 0.95 1.02 1.17 1.25
offline | H100, mixture | 61 15 | 0.30 0.41 0.66 0.77 0.90 0.97 1.00 1.05 1.13 1.17 1.36
offline | H100, mxfp4, mixture | 30 7 | 0.25 0.30 0.41 0.66 0.84 0.91 0.97 1.00 1.05 1.13 1.17
offline | H100, mxfp4, mixture, vllm | 24 4 | 0.66 0.67 0.83 0.90 0.96 0.97 0.99 1.04 1.09 1.14 1.17
offline | H200, dense | 33 5 | 0.87 0.91 0.98 1.02 1.05 1.09 1.10 1.13 1.18 1.27 1.50
offline | H200, fp8, dense | 33 5 | 0.87 0.91 0.98 1.02 1.05 1.09 1.10 1.13 1.18 1.27 1.50
offline | H200, fp8, dense, trtllm | 33 5 | 0.87 0.91 0.98 1.02 1.05 1.09 1.10 1.13 1.18 1.27 1.50
offline | H200, mixture | 29 7 | 0.29 0.30 0.58 0.76 0.90 0.98 1.04 1.17 1.24 1.35 1.46
offline | ampere, bf16, dense | 38 9 | 0.69 0.81 0.90 0.94 0.98 1.03 1.13 1.16 1.25 1.39 1.54
offline | ampere, dense | 42 13 | 0.71 0.83 0.91 0.93 0.98 1.01 1.07 1.14 1.18 1.37 1.50
offline | ampere, mixture | 34 7 | 0.27 0.60 0.73 0.86 0.96 1.03 1.12 1.13 1.17 1.30 1.47
offline | ampere, mxfp4, mixture | 26 4 | 0.10 0.56 0.67 0.89 1.01 1.09 1.12 1.13 1.16 1.31 1.60
offline | blackwell, mixture | 25 5 | 0.46 0.48 0.61 0.64 0.70 0.74 0.77 0.86 0.99 1.11 1.35
offline | dense | 139 33 | 0.59 0.67 0.88 0.93 0.98 1.02 1.07 1.13 1.17 1.29 1.39
offline | hopper, bf16, dense | 6 4 | 0.37 0.37 0.50 0.59 0.59 0.60 0.62 0.67 0.75 0.91 0.95
offline | hopper, bf16, mixture | 15 5 | 0.50 0.75 0.82 0.97 0.99 1.02 1.06 1.11 1.12 1.15 1.16
offline | hopper, dense | 56 13 | 0.44 0.53 0.69 0.91 0.95 0.99 1.05 1.10 1.15 1.24 1.31
offline | hopper, fp8, dense | 45 8 | 0.88 0.91 0.94 0.99 1.02 1.05 1.10 1.12 1.17 1.26 1.37
offline | hopper, fp8, mixture | 23 4 | 0.51 0.56 0.66 0.76 0.82 0.93 1.14 1.25 1.35 1.44 1.51
offline | hopper, fp8-block, mixture | 15 4 | 0.29 0.29 0.30 0.37 0.81 0.96 0.98 1.08 1.28 1.37 1.39
offline | hopper, mixture | 90 22 | 0.29 0.34 0.63 0.77 0.90 0.97 1.01 1.08 1.16 1.26 1.39
offline | hopper, mxfp4, mixture | 37 9 | 0.28 0.32 0.60 0.76 0.89 0.96 0.98 1.03 1.07 1.16 1.17
offline | mixture | 151 35 | 0.30 0.45 0.64 0.75 0.86 0.96 1.01 1.10 1.15 1.27 1.38
static |  | 72 19 | 0.87 0.88 0.92 0.95 0.97 0.99 1.03 1.08 1.20 2.16 2.79
static | H100, dense | 19 5 | 0.92 0.93 0.96 0.99 1.02 1.42 1.46 2.08 2.75 3.27 3.86
static | ampere, bf16, dense | 10 5 | 0.86 0.87 0.88 0.88 0.90 0.91 0.96 0.98 1.60 2.23 2.50
static | ampere, dense | 10 5 | 0.86 0.87 0.88 0.88 0.90 0.91 0.96 0.98 1.60 2.23 2.50
static | dense | 70 17 | 0.87 0.88 0.92 0.95 0.98 1.01 1.04 1.09 1.21 2.29 2.81
static | hopper, bf16, dense | 4 4 | 0.87 0.87 0.89 0.90 0.92 0.92 0.93 0.93 0.94 0.95 0.95
static | hopper, dense | 24 8 | 0.89 0.92 0.93 0.97 0.99 1.02 1.20 1.46 2.40 3.03 3.45
static | hopper, fp8, dense | 20 4 | 0.94 0.98 0.99 1.01 1.08 1.36 1.46 2.00 2.74 3.26 3.83
token |  | 2122 152 | 0.78 0.83 0.89 0.93 0.96 0.99 1.02 1.05 1.12 1.23 1.33
token | A100-80, bf16, dense | 11 4 | 0.91 0.92 0.95 1.00 1.13 1.23 1.27 1.29 1.34 1.37 1.41
token | A100-80, dense | 39 14 | 0.90 0.93 0.96 0.98 1.00 1.02 1.05 1.15 1.24 1.35 1.63
token | A100-80, int4, dense | 19 7 | 0.91 0.93 0.97 0.99 0.99 1.02 1.05 1.09 1.18 1.59 1.88
token | A100-80, int4, dense, vllm | 17 6 | 0.90 0.93 0.96 0.98 0.99 1.00 1.04 1.09 1.20 1.71 1.90
token | B200, dense | 111 7 | 0.82 0.83 0.88 0.92 0.94 0.96 0.99 1.02 1.07 1.12 1.16
token | B200, fp8-block, mixture | 209 11 | 0.75 0.81 0.91 0.95 0.98 1.04 1.08 1.14 1.20 1.34 1.47
token | B200, fp8-block, mixture, sglang | 67 5 | 0.74 0.80 0.90 0.96 1.03 1.07 1.11 1.15 1.18 1.21 1.44
token | B200, fp8-block, mixture, trtllm | 70 5 | 0.70 0.75 0.84 0.93 1.01 1.09 1.16 1.27 1.32 1.41 1.64
token | B200, mixture | 515 30 | 0.74 0.80 0.89 0.93 0.96 1.00 1.03 1.07 1.14 1.27 1.37
token | B200, mxfp4, mixture | 104 5 | 0.71 0.85 0.93 0.96 0.98 1.01 1.02 1.04 1.05 1.12 1.29
token | B200, nvfp4, dense | 66 4 | 0.82 0.83 0.84 0.89 0.91 0.93 0.97 1.02 1.09 1.12 1.17
token | B200, nvfp4, mixture | 202 14 | 0.74 0.79 0.85 0.91 0.94 0.96 1.00 1.04 1.09 1.19 1.33
token | B200, nvfp4, mixture, trtllm | 90 7 | 0.77 0.80 0.89 0.93 0.95 0.97 1.00 1.04 1.09 1.30 1.52
token | B200, nvfp4, mixture, vllm | 51 4 | 0.75 0.76 0.85 0.91 0.93 0.95 0.99 1.07 1.16 1.19 1.30
token | B300, fp8-block, mixture | 113 8 | 0.68 0.78 0.85 0.90 0.94 0.97 1.00 1.03 1.05 1.16 1.33
token | B300, fp8-block, mixture, sglang | 58 5 | 0.64 0.69 0.79 0.86 0.88 0.92 0.96 1.03 1.14 1.24 2.22
token | B300, mixture | 219 16 | 0.75 0.81 0.87 0.92 0.95 0.98 1.02 1.04 1.10 1.19 1.44
token | B300, nvfp4, mixture | 86 6 | 0.78 0.81 0.86 0.91 0.96 1.02 1.07 1.10 1.16 1.23 1.76
token | H100, bf16, dense | 283 10 | 0.80 0.85 0.90 0.95 0.98 1.00 1.02 1.04 1.07 1.12 1.20
token | H100, bf16, dense, trtllm | 136 4 | 0.86 0.89 0.95 0.98 1.00 1.02 1.05 1.07 1.10 1.23 1.29
token | H100, dense | 516 19 | 0.84 0.87 0.92 0.96 0.99 1.00 1.02 1.04 1.07 1.15 1.27
token | H100, fp8, dense | 54 4 | 0.98 0.99 1.00 1.01 1.02 1.03 1.04 1.07 1.10 1.45 1.68
token | H100, fp8-block, dense | 179 5 | 0.88 0.90 0.92 0.95 0.98 0.99 1.00 1.02 1.06 1.20 1.27
token | H100, fp8-block, dense, trtllm | 176 4 | 0.87 0.90 0.92 0.95 0.97 0.99 1.00 1.02 1.05 1.12 1.27
token | H100, mixture | 186 7 | 0.48 0.74 0.79 0.83 0.89 0.91 0.95 0.97 0.99 1.13 1.25
token | H100, mxfp4, mixture | 60 5 | 0.13 0.28 0.85 0.91 0.95 0.96 0.97 0.98 1.03 1.31 1.53
token | H100, mxfp4, mixture, vllm | 56 4 | 0.12 0.22 0.83 0.90 0.94 0.96 0.97 0.98 0.99 1.15 1.34
token | H200, dense | 115 8 | 0.84 0.88 0.91 0.92 0.94 0.96 0.99 1.01 1.05 1.14 1.24
token | H200, fp8, dense | 115 8 | 0.84 0.88 0.91 0.92 0.94 0.96 0.99 1.01 1.05 1.14 1.24
token | H200, fp8-block, mixture | 175 11 | 0.82 0.87 0.92 0.96 1.01 1.08 1.16 1.21 1.24 1.27 1.33
token | H200, fp8-block, mixture, sglang | 70 4 | 0.82 0.85 0.89 0.92 0.95 0.98 1.01 1.04 1.10 1.18 1.24
token | H200, fp8-block, mixture, trtllm | 53 4 | 1.03 1.08 1.17 1.23 1.24 1.25 1.26 1.27 1.29 1.33 1.38
token | H200, mixture | 346 19 | 0.84 0.87 0.92 0.95 0.99 1.02 1.05 1.10 1.18 1.25 1.28
token | H200, mxfp4, mixture | 126 7 | 0.84 0.91 0.96 0.99 1.01 1.02 1.03 1.05 1.07 1.14 1.17
token | H200, mxfp4, mixture, trtllm | 81 4 | 0.82 0.85 0.94 0.97 1.00 1.01 1.05 1.08 1.14 1.17 1.18
token | MI300X, fp8-block, mixture | 16 5 | 0.69 0.80 0.93 0.97 1.05 1.14 1.52 1.69 2.05 2.14 2.20
token | MI300X, fp8-block, mixture, sglang | 16 5 | 0.69 0.80 0.93 0.97 1.05 1.14 1.52 1.69 2.05 2.14 2.20
token | MI300X, mixture | 16 5 | 0.69 0.80 0.93 0.97 1.05 1.14 1.52 1.69 2.05 2.14 2.20
token | RTX-4090, dense | 23 8 | 0.77 0.79 0.84 0.86 0.88 1.01 1.03 1.04 1.16 1.35 1.56
token | RTX-4090, int4, dense | 17 6 | 0.77 0.78 0.82 0.84 0.97 1.02 1.05 1.12 1.23 1.45 1.71
token | RTX-4090, int4, dense, other | 13 5 | 0.76 0.77 0.80 0.83 0.85 1.00 1.12 1.22 1.30 1.52 1.82
token | ada, dense | 27 10 | 0.77 0.81 0.84 0.86 0.89 1.01 1.04 1.12 1.16 1.27 1.50
token | ada, int4, dense | 21 8 | 0.77 0.79 0.84 0.85 0.94 1.02 1.09 1.14 1.20 1.38 1.60
token | ampere, bf16, dense | 15 6 | 0.86 0.87 0.91 0.96 1.03 1.18 1.23 1.26 1.30 1.35 1.40
token | ampere, dense | 58 24 | 0.80 0.86 0.90 0.94 0.98 1.00 1.04 1.11 1.20 1.28 1.39
token | ampere, int4, dense | 34 15 | 0.77 0.82 0.89 0.93 0.98 0.99 1.04 1.06 1.12 1.25 1.67
token | blackwell, dense | 111 7 | 0.82 0.83 0.88 0.92 0.94 0.96 0.99 1.02 1.07 1.12 1.16
token | blackwell, fp8-block, mixture | 322 19 | 0.73 0.80 0.88 0.93 0.97 1.00 1.04 1.09 1.16 1.29 1.42
token | blackwell, mixture | 735 47 | 0.74 0.80 0.88 0.92 0.95 0.99 1.03 1.06 1.13 1.22 1.37
token | blackwell, mxfp4, mixture | 104 5 | 0.71 0.85 0.93 0.96 0.98 1.01 1.02 1.04 1.05 1.12 1.29
token | blackwell, nvfp4, dense | 66 4 | 0.82 0.83 0.84 0.89 0.91 0.93 0.97 1.02 1.09 1.12 1.17
token | blackwell, nvfp4, mixture | 289 21 | 0.74 0.79 0.85 0.91 0.94 0.97 1.02 1.07 1.13 1.21 1.45
token | cdna3, fp8-block, mixture | 16 5 | 0.69 0.80 0.93 0.97 1.05 1.14 1.52 1.69 2.05 2.14 2.20
token | cdna3, mixture | 16 5 | 0.69 0.80 0.93 0.97 1.05 1.14 1.52 1.69 2.05 2.14 2.20
token | dense | 837 73 | 0.83 0.86 0.91 0.94 0.98 1.00 1.02 1.04 1.08 1.20 1.28
token | hopper, bf16, dense | 285 11 | 0.80 0.85 0.91 0.95 0.98 1.00 1.02 1.04 1.07 1.12 1.20
token | hopper, dense | 639 30 | 0.84 0.88 0.92 0.95 0.98 1.00 1.02 1.04 1.07 1.17 1.27
token | hopper, fp8, dense | 169 12 | 0.86 0.90 0.92 0.94 0.98 1.00 1.02 1.04 1.07 1.20 1.42
token | hopper, fp8-block, dense | 179 5 | 0.88 0.90 0.92 0.95 0.98 0.99 1.00 1.02 1.06 1.20 1.27
token | hopper, fp8-block, mixture | 301 13 | 0.77 0.80 0.86 0.90 0.93 0.98 1.04 1.12 1.21 1.26 1.29
token | hopper, mixture | 532 26 | 0.77 0.81 0.88 0.92 0.95 0.98 1.02 1.05 1.15 1.24 1.28
token | hopper, mxfp4, mixture | 186 12 | 0.70 0.84 0.93 0.96 0.98 1.00 1.02 1.04 1.07 1.16 1.20
token | mixture | 1285 79 | 0.75 0.81 0.88 0.92 0.95 0.99 1.02 1.06 1.14 1.24 1.36
""")
"""Measured over predicted, cross-validated: rows, groups, and the factors at ``LEVELS``."""
