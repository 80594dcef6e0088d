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
admit/sglang 0.00122
admit/vllm 0.00167
attention-matrix-engine/llamacpp 0.269
attention-matrix-engine/sglang 0.389
attention-matrix-engine/vllm 1.27
attention-matrix/ada 0.289
attention-matrix/ampere 0.33
attention-matrix/blackwell 0.259
attention-matrix/hopper 0.351
attention/ada 0.689
attention/blackwell 0.986
attention/hopper 0.88
bandwidth-card/A100-40 0.954
bandwidth-card/A100-80 0.92
bandwidth-card/A100-80-PCIE 0.941
bandwidth-card/A40 1.02
bandwidth-card/B300 1.05
bandwidth-card/H100 1.04
bandwidth-card/H100-PCIE 0.953
bandwidth-card/L4 0.981
bandwidth-card/MI300X 0.981
bandwidth-card/RTX-3090 1.06
bandwidth-card/RTX-3090-TI 1.1
bandwidth-card/RTX-4090 1.05
bandwidth-format/fp8-block/blackwell 0.724
bandwidth-format/fp8-block/hopper 1.07
bandwidth-format/fp8/ada 0.843
bandwidth-format/fp8/blackwell 1.12
bandwidth-format/fp8/cdna3 0.875
bandwidth-format/fp8/hopper 1.08
bandwidth-format/int4/ada 0.867
bandwidth-format/int4/ampere 0.89
bandwidth-format/int4/hopper 0.718
bandwidth/ada 0.937
bandwidth/hopper 0.948
experts-engine/sglang/ampere 0.922
experts-engine/sglang/blackwell 1.39
experts-engine/sglang/cdna3 0.86
experts-engine/sglang/hopper 0.775
experts-engine/sglang/mxfp4 0.734
experts-engine/sglang/nvfp4 1.13
experts-engine/trtllm/ampere 0.879
experts-engine/trtllm/bf16 0.904
experts-engine/trtllm/fp8 0.718
experts-engine/trtllm/fp8-block 1.16
experts-engine/trtllm/hopper 1.06
experts-engine/trtllm/mxfp4 1.22
experts-engine/vllm/bf16 1.12
experts-engine/vllm/blackwell 1.2
experts-engine/vllm/mxfp4 1.18
experts-engine/vllm/nvfp4 0.949
experts-matrix/bf16/ampere 0.513
experts-matrix/bf16/hopper 0.507
experts-matrix/fp8-block/blackwell 0.161
experts-matrix/fp8-block/cdna3 0.257
experts-matrix/fp8-block/hopper 0.116
experts-matrix/fp8/ada 0.38
experts-matrix/fp8/hopper 0.46
experts-matrix/int4/hopper 0.236
experts-matrix/mxfp4/ampere 0.345
experts-matrix/mxfp4/blackwell 0.224
experts-matrix/mxfp4/hopper 0.201
experts-whole 0.93
experts/bf16/ampere 0.528
experts/bf16/blackwell 0.967
experts/fp8-block/blackwell 0.874
experts/fp8-block/cdna3 0.499
experts/fp8-block/hopper 1.09
experts/fp8/hopper 0.319
experts/mxfp4/ampere 0.593
experts/mxfp4/blackwell 1.01
experts/mxfp4/hopper 0.638
experts/nvfp4/blackwell 0.897
first/sglang 0.0347
first/trtllm 0.041
first/vllm 0.0177
layer-engine/llamacpp/ada 0.817
layer-engine/llamacpp/ampere 1.3
layer-engine/llamacpp/bf16 1.42
layer-engine/llamacpp/hopper 1.13
layer-engine/llamacpp/int4 0.838
layer-engine/other/ampere 0.944
layer-engine/other/int4 0.878
layer-engine/sglang/ampere 1.3
layer-engine/sglang/bf16 0.767
layer-engine/sglang/blackwell 0.933
layer-engine/sglang/cdna3 1.11
layer-engine/sglang/fp8 1.28
layer-engine/sglang/fp8-block 1.09
layer-engine/sglang/hopper 0.793
layer-engine/sglang/mxfp4 1.05
layer-engine/sglang/nvfp4 0.954
layer-engine/trtllm/ampere 0.873
layer-engine/trtllm/bf16 1.44
layer-engine/trtllm/blackwell 1.12
layer-engine/trtllm/fp8 0.754
layer-engine/trtllm/fp8-block 1.52
layer-engine/trtllm/mxfp4 0.77
layer-engine/trtllm/nvfp4 0.795
layer-engine/vllm/ampere 1.14
layer-engine/vllm/blackwell 0.888
layer-engine/vllm/fp8 1.06
layer-engine/vllm/fp8-block 1.06
layer-engine/vllm/hopper 1.05
layer-engine/vllm/int4 0.945
layer-engine/vllm/mxfp4 0.881
layer-engine/vllm/nvfp4 1.14
layer-release/llamacpp/any 1.19
layer-release/other/any 0.91
layer-release/sglang/0.5.6 1.37
layer-release/sglang/0.5.7 0.78
layer-release/trtllm/0 1.15
layer-release/trtllm/1.0 0.803
layer-release/trtllm/1.1 1.4
layer-release/trtllm/1.2 0.779
layer-release/vllm/0.12-0.17 0.906
layer-release/vllm/0.18 0.938
layer-release/vllm/0.7 1.42
layer-release/vllm/0.8-0.11 0.913
layer/llamacpp 9.05e-05
layer/other 3.09e-05
layer/sglang 5.92e-05
layer/vllm 6.7e-05
link/nvlink/blackwell 0.331
link/nvlink/hopper 0.512
link/pcie/ada 0.618
link/pcie/ampere 0.466
link/xgmi/cdna3 0.232
matrix-card/A100-40 0.956
matrix-card/A100-80 1.07
matrix-card/A100-80-PCIE 1.06
matrix-card/A10G 0.917
matrix-card/A40 0.973
matrix-card/B200 0.824
matrix-card/B300 1.08
matrix-card/H100 1.05
matrix-card/H100-PCIE 0.856
matrix-card/L4 0.966
matrix-card/RTX-3090 1.08
matrix-card/RTX-4090 1.1
matrix-engine/llamacpp 0.626
matrix-engine/sglang 1.23
matrix-engine/trtllm 1.23
matrix-engine/vllm 0.869
matrix-halves 2.25
matrix/bf16/ada 0.702
matrix/bf16/ampere 0.615
matrix/bf16/blackwell 0.43
matrix/bf16/cdna3 0.543
matrix/bf16/hopper 0.731
matrix/fp8-block/ampere 0.438
matrix/fp8-block/blackwell 0.362
matrix/fp8-block/hopper 0.395
matrix/fp8/blackwell 0.623
matrix/fp8/cdna3 0.563
matrix/int4/ada 0.42
matrix/int4/hopper 0.337
matrix/nvfp4/blackwell 0.554
meeting/sglang/even 0.614
meeting/sglang/spread 0.863
meeting/trtllm/spread 0.91
meeting/vllm/even 0.937
meeting/vllm/spread 0.811
mla 3.29e-05
mla-engine/sglang 1.58
mla-engine/trtllm 1.7
mla-engine/vllm 0.511
moe-engine/sglang/bf16 0.932
moe-engine/sglang/blackwell 0.685
moe-engine/sglang/cdna3 1.82
moe-engine/sglang/fp8-block 1.62
moe-engine/sglang/hopper 0.855
moe-engine/sglang/nvfp4 0.687
moe-engine/trtllm/blackwell 0.677
moe-engine/trtllm/fp8 1.13
moe-engine/trtllm/fp8-block 0.605
moe-engine/trtllm/hopper 1.42
moe-engine/trtllm/mxfp4 1.54
moe-engine/trtllm/nvfp4 0.92
moe-engine/vllm/blackwell 0.923
moe-engine/vllm/fp8-block 2.09
moe-engine/vllm/hopper 1.13
moe-engine/vllm/int4 0.872
moe-engine/vllm/mxfp4 0.772
moe-engine/vllm/nvfp4 0.731
moe-release/sglang/0.5.6 0.726
moe-release/sglang/0.5.7 1.47
moe-release/trtllm/1.0 1.09
moe-release/trtllm/1.1 1.19
moe-release/trtllm/1.2 0.773
moe-release/vllm/0.12-0.17 1.09
moe-release/vllm/0.18 0.645
moe-release/vllm/0.8-0.11 1.54
moe-whole/sglang 1.08
moe-whole/trtllm 1.34
moe/sglang 3.89e-05
moe/trtllm 2.61e-05
moe/vllm 3.47e-05
overlap 0.82
prompt-moe/sglang 0.0013
prompt-moe/trtllm 6.14e-05
prompt-moe/vllm 9.18e-05
prompt/llamacpp 7.8e-05
prompt/sglang 3.52e-05
prompt/trtllm 3.71e-05
prompt/vllm 7.7e-05
ranks-wait 1.23
reduce-engine/llamacpp 0.938
reduce-engine/other 0.875
reduce-engine/sglang 0.903
reduce-engine/trtllm 0.91
reduce-engine/vllm 1.05
reduce-pcie 2.82
reduce-ranks/1 0.725
reduce-ranks/4 0.92
reduce-ranks/8 1.05
reduce/ada 4.89e-06
reduce/ampere 4.86e-06
reduce/blackwell 3.89e-06
reduce/cdna3 6.94e-06
reduce/hopper 5.01e-06
sequence/sglang 1.94e-05
sequence/trtllm 1.33e-05
state 1.71e-05
""")

ERRORS: Mapping[str, Mapping[str, Errors]] = parse_errors("""
among few |  | 278 80 | 0.70 0.78 0.88 0.95 1.02 1.09 1.20 1.42 1.70 2.20 3.05
among few | B200, dense | 21 7 | 0.71 0.74 0.83 0.92 0.96 1.04 1.10 1.49 1.63 1.87 2.29
among few | B200, fp8-block, mixture | 36 8 | 0.64 0.94 1.02 1.07 1.27 1.42 1.73 1.87 2.12 2.55 3.51
among few | B200, fp8-block, mixture, sglang | 14 5 | 0.05 0.32 1.06 1.09 1.23 1.43 1.61 1.75 2.10 2.16 2.18
among few | B200, mixture | 86 24 | 0.57 0.81 0.94 0.99 1.08 1.20 1.38 1.79 2.11 2.62 3.62
among few | B200, mxfp4, mixture | 15 5 | 0.49 0.53 0.71 0.80 0.84 0.88 0.95 0.97 0.99 1.04 1.08
among few | B200, nvfp4, dense | 12 4 | 0.68 0.72 0.74 0.81 0.89 1.02 1.08 1.20 1.53 1.89 2.55
among few | B200, nvfp4, mixture | 35 11 | 0.75 0.87 0.97 1.11 1.20 1.27 1.79 2.02 2.43 3.02 5.74
among few | B200, nvfp4, mixture, trtllm | 10 4 | 0.89 0.92 1.05 1.18 1.36 1.81 1.91 2.01 2.36 2.94 3.04
among few | B200, nvfp4, mixture, vllm | 14 4 | 0.86 0.87 0.94 1.03 1.11 1.19 1.27 1.36 1.63 2.37 2.45
among few | B300, fp8-block, mixture | 20 8 | 0.67 0.89 0.94 0.97 1.06 1.09 1.14 1.18 1.67 4.46 5.88
among few | B300, fp8-block, mixture, sglang | 11 5 | 0.55 0.78 1.07 1.09 1.15 1.21 1.47 1.71 3.31 5.78 6.14
among few | B300, mixture | 42 16 | 0.89 0.93 0.95 0.98 1.08 1.09 1.11 1.17 1.36 2.80 4.94
among few | B300, nvfp4, mixture | 18 6 | 0.95 0.97 1.05 1.07 1.08 1.11 1.14 1.28 1.36 2.81 3.61
among few | H100, dense | 13 5 | 0.72 0.75 0.78 0.79 0.83 0.84 0.87 0.89 1.08 2.18 5.91
among few | H100, mixture | 23 6 | 0.67 0.69 0.76 0.83 0.97 1.12 1.31 1.58 1.68 1.96 2.03
among few | H100, mxfp4, mixture | 11 4 | 0.67 0.67 0.69 0.73 0.76 0.80 0.83 0.86 1.01 1.08 1.11
among few | H100, mxfp4, mixture, vllm | 11 4 | 0.67 0.67 0.69 0.73 0.76 0.80 0.83 0.86 1.01 1.08 1.11
among few | H200, dense | 15 5 | 0.74 0.80 0.82 0.83 0.89 0.91 0.91 0.94 0.98 2.52 2.87
among few | H200, fp8, dense | 15 5 | 0.74 0.80 0.82 0.83 0.89 0.91 0.91 0.94 0.98 2.52 2.87
among few | H200, fp8-block, mixture | 40 8 | 0.84 0.90 1.01 1.09 1.17 1.35 1.55 1.62 1.81 2.76 4.69
among few | H200, mixture | 76 16 | 0.78 0.87 0.95 0.99 1.09 1.14 1.35 1.50 1.61 1.82 2.77
among few | H200, mxfp4, mixture | 27 7 | 0.77 0.79 0.91 0.95 0.96 0.99 1.09 1.30 1.41 1.61 1.63
among few | H200, mxfp4, mixture, trtllm | 18 4 | 0.76 0.78 0.95 1.00 1.10 1.18 1.35 1.44 1.61 1.62 1.65
among few | blackwell, dense | 21 7 | 0.71 0.74 0.83 0.92 0.96 1.04 1.10 1.49 1.63 1.87 2.29
among few | blackwell, fp8-block, mixture | 56 16 | 0.75 0.93 0.96 1.04 1.09 1.19 1.41 1.72 2.02 2.65 4.40
among few | blackwell, mixture | 128 40 | 0.69 0.87 0.94 0.99 1.08 1.12 1.25 1.44 1.97 2.65 3.96
among few | blackwell, mxfp4, mixture | 15 5 | 0.49 0.53 0.71 0.80 0.84 0.88 0.95 0.97 0.99 1.04 1.08
among few | blackwell, nvfp4, dense | 12 4 | 0.68 0.72 0.74 0.81 0.89 1.02 1.08 1.20 1.53 1.89 2.55
among few | blackwell, nvfp4, mixture | 53 17 | 0.86 0.92 0.99 1.08 1.13 1.20 1.30 1.79 2.29 3.06 3.83
among few | dense | 49 17 | 0.72 0.75 0.81 0.84 0.87 0.91 0.96 1.06 1.51 1.91 2.69
among few | hopper, dense | 28 10 | 0.72 0.76 0.80 0.82 0.84 0.87 0.91 0.91 1.00 2.21 3.24
among few | hopper, fp8, dense | 24 8 | 0.72 0.75 0.79 0.82 0.84 0.87 0.89 0.91 0.93 1.10 2.65
among few | hopper, fp8-block, mixture | 52 10 | 0.86 0.92 1.06 1.15 1.31 1.53 1.58 1.69 1.82 2.53 4.30
among few | hopper, mixture | 99 22 | 0.74 0.78 0.91 0.98 1.08 1.14 1.33 1.54 1.62 1.83 2.58
among few | hopper, mxfp4, mixture | 38 11 | 0.68 0.75 0.78 0.85 0.93 0.96 1.00 1.09 1.31 1.59 1.62
among few | mixture | 229 63 | 0.68 0.81 0.94 0.97 1.07 1.12 1.29 1.45 1.74 2.27 3.41
first |  | 59 29 | 0.61 0.69 0.79 0.87 0.93 1.01 1.05 1.12 1.22 1.54 2.42
first | A100-80, bf16, dense | 8 5 | 0.69 0.72 0.80 0.87 0.96 1.02 1.05 1.11 5.75 10.60 12.10
first | A100-80, dense | 10 6 | 0.69 0.74 0.83 0.93 1.02 1.04 1.07 1.11 2.60 9.79 12.01
first | L40S, dense | 6 4 | 0.93 0.93 0.94 0.95 0.95 1.03 1.13 1.13 1.16 1.25 1.27
first | ada, dense | 16 7 | 0.61 0.63 0.68 0.78 0.85 0.94 1.00 1.13 1.27 1.43 1.63
first | ampere, bf16, dense | 12 7 | 0.69 0.69 0.79 0.83 0.89 0.96 1.01 1.04 1.16 9.05 11.55
first | ampere, dense | 26 13 | 0.69 0.69 0.81 0.87 0.92 1.01 1.04 1.09 1.16 1.63 8.88
first | ampere, int4, dense | 14 6 | 0.63 0.71 0.85 0.88 0.96 1.03 1.06 1.13 1.17 1.43 1.60
first | dense | 57 27 | 0.61 0.69 0.79 0.88 0.93 1.01 1.05 1.12 1.27 1.58 2.44
first | hopper, dense | 15 7 | 0.57 0.74 0.91 0.98 1.02 1.05 1.06 1.13 1.38 2.25 2.44
first | hopper, fp8, dense | 7 4 | 0.52 0.56 0.74 0.90 0.98 1.00 1.03 1.05 1.07 1.11 1.12
offline |  | 290 68 | 0.40 0.60 0.75 0.85 0.93 1.00 1.04 1.11 1.16 1.27 1.38
offline | A100-80, bf16, dense | 24 5 | 0.74 0.80 0.90 0.93 0.97 1.00 1.03 1.12 1.15 1.48 1.82
offline | A100-80, bf16, dense, trtllm | 19 4 | 0.79 0.83 0.90 0.94 0.97 0.99 1.07 1.13 1.15 1.54 1.93
offline | A100-80, dense | 28 9 | 0.77 0.82 0.87 0.91 0.96 0.98 1.02 1.05 1.14 1.41 1.69
offline | A100-80, mixture | 29 6 | 0.16 0.57 0.82 0.95 1.00 1.10 1.12 1.13 1.26 1.29 1.55
offline | A100-80, mxfp4, mixture | 26 4 | 0.10 0.56 0.66 0.88 1.00 1.08 1.11 1.12 1.16 1.30 1.59
offline | B200, mixture | 25 5 | 0.46 0.56 0.65 0.69 0.71 0.76 0.80 0.85 0.90 1.09 1.26
offline | H100, bf16, dense | 6 4 | 0.37 0.38 0.50 0.59 0.60 0.61 0.62 0.67 0.75 0.90 0.95
offline | H100, bf16, mixture | 15 5 | 0.48 0.74 0.83 0.97 1.01 1.02 1.06 1.11 1.12 1.16 1.16
offline | H100, dense | 23 8 | 0.38 0.42 0.51 0.60 0.64 0.89 0.91 0.94 1.02 1.16 1.26
offline | H100, mixture | 61 15 | 0.31 0.41 0.67 0.79 0.90 0.97 1.02 1.05 1.12 1.16 1.39
offline | H100, mxfp4, mixture | 30 7 | 0.26 0.31 0.43 0.67 0.83 0.92 0.97 0.99 1.04 1.12 1.16
offline | H100, mxfp4, mixture, vllm | 24 4 | 0.67 0.68 0.83 0.90 0.96 0.97 0.99 1.03 1.07 1.13 1.16
offline | H200, dense | 33 5 | 0.87 0.92 1.00 1.03 1.05 1.09 1.11 1.14 1.19 1.26 1.71
offline | H200, fp8, dense | 33 5 | 0.87 0.92 1.00 1.03 1.05 1.09 1.11 1.14 1.19 1.26 1.71
offline | H200, fp8, dense, trtllm | 33 5 | 0.87 0.92 1.00 1.03 1.05 1.09 1.11 1.14 1.19 1.26 1.71
offline | H200, mixture | 29 7 | 0.29 0.30 0.65 0.78 0.86 0.99 1.07 1.09 1.18 1.27 1.34
offline | ampere, bf16, dense | 38 9 | 0.69 0.80 0.90 0.94 0.98 1.02 1.12 1.14 1.25 1.39 1.53
offline | ampere, dense | 42 13 | 0.71 0.82 0.88 0.92 0.97 1.01 1.05 1.13 1.16 1.37 1.50
offline | ampere, mixture | 34 7 | 0.27 0.60 0.73 0.86 0.97 1.04 1.11 1.12 1.17 1.27 1.46
offline | ampere, mxfp4, mixture | 26 4 | 0.10 0.56 0.66 0.88 1.00 1.08 1.11 1.12 1.16 1.30 1.59
offline | blackwell, mixture | 25 5 | 0.46 0.56 0.65 0.69 0.71 0.76 0.80 0.85 0.90 1.09 1.26
offline | dense | 139 33 | 0.59 0.68 0.86 0.92 0.97 1.02 1.07 1.13 1.18 1.28 1.38
offline | hopper, bf16, dense | 6 4 | 0.37 0.38 0.50 0.59 0.60 0.61 0.62 0.67 0.75 0.90 0.95
offline | hopper, bf16, mixture | 15 5 | 0.48 0.74 0.83 0.97 1.01 1.02 1.06 1.11 1.12 1.16 1.16
offline | hopper, dense | 56 13 | 0.44 0.53 0.69 0.90 0.94 1.01 1.05 1.10 1.16 1.24 1.29
offline | hopper, fp8, dense | 45 8 | 0.88 0.90 0.93 1.00 1.03 1.06 1.10 1.13 1.18 1.25 1.37
offline | hopper, fp8, mixture | 23 4 | 0.50 0.62 0.75 0.79 0.81 0.98 1.09 1.15 1.26 1.37 1.42
offline | hopper, fp8-block, mixture | 15 4 | 0.29 0.29 0.30 0.37 0.83 0.97 1.01 1.11 1.33 1.41 1.43
offline | hopper, mixture | 90 22 | 0.29 0.35 0.67 0.79 0.90 0.98 1.02 1.08 1.14 1.21 1.38
offline | hopper, mxfp4, mixture | 37 9 | 0.29 0.34 0.61 0.76 0.88 0.96 0.98 1.02 1.07 1.16 1.17
offline | mixture | 151 35 | 0.31 0.45 0.67 0.77 0.85 0.97 1.02 1.08 1.14 1.25 1.38
static |  | 72 19 | 0.88 0.89 0.92 0.96 0.98 1.01 1.04 1.09 1.23 2.11 2.72
static | H100, dense | 19 5 | 0.92 0.92 0.95 0.99 1.03 1.37 1.40 2.03 2.69 3.22 3.80
static | ampere, bf16, dense | 10 5 | 0.86 0.87 0.88 0.89 0.91 0.92 0.96 1.00 1.58 2.21 2.49
static | ampere, dense | 10 5 | 0.86 0.87 0.88 0.89 0.91 0.92 0.96 1.00 1.58 2.21 2.49
static | dense | 70 17 | 0.88 0.89 0.92 0.97 0.99 1.01 1.05 1.09 1.23 2.25 2.74
static | hopper, bf16, dense | 4 4 | 0.89 0.89 0.90 0.91 0.92 0.92 0.92 0.92 0.92 0.93 0.93
static | hopper, dense | 24 8 | 0.90 0.92 0.92 0.97 1.00 1.02 1.20 1.40 2.35 2.96 3.40
static | hopper, fp8, dense | 20 4 | 0.95 0.97 0.99 1.01 1.08 1.33 1.40 1.95 2.68 3.21 3.77
token |  | 2122 152 | 0.80 0.85 0.90 0.94 0.97 1.00 1.02 1.05 1.10 1.19 1.30
token | A100-80, bf16, dense | 11 4 | 0.90 0.91 0.94 0.99 1.14 1.25 1.26 1.28 1.34 1.38 1.42
token | A100-80, dense | 39 14 | 0.90 0.92 0.95 0.98 0.99 1.02 1.06 1.15 1.25 1.35 1.64
token | A100-80, int4, dense | 19 7 | 0.90 0.93 0.96 0.98 0.99 1.02 1.05 1.10 1.18 1.59 1.88
token | A100-80, int4, dense, vllm | 17 6 | 0.89 0.92 0.95 0.98 0.99 0.99 1.04 1.09 1.20 1.71 1.90
token | B200, dense | 111 7 | 0.87 0.90 0.92 0.94 0.96 0.98 1.00 1.03 1.06 1.09 1.14
token | B200, fp8-block, mixture | 209 11 | 0.78 0.82 0.91 0.95 0.99 1.05 1.07 1.13 1.17 1.24 1.30
token | B200, fp8-block, mixture, sglang | 67 5 | 0.74 0.81 0.90 0.97 1.04 1.07 1.12 1.16 1.18 1.20 1.43
token | B200, fp8-block, mixture, trtllm | 70 5 | 0.76 0.80 0.90 0.95 1.05 1.06 1.13 1.16 1.22 1.25 1.51
token | B200, mixture | 515 30 | 0.77 0.82 0.89 0.92 0.96 0.99 1.02 1.06 1.13 1.21 1.30
token | B200, mxfp4, mixture | 104 5 | 0.76 0.85 0.93 0.95 0.97 0.99 1.01 1.03 1.05 1.09 1.26
token | B200, nvfp4, dense | 66 4 | 0.87 0.90 0.91 0.94 0.96 0.98 1.00 1.03 1.07 1.09 1.14
token | B200, nvfp4, mixture | 202 14 | 0.76 0.81 0.87 0.90 0.92 0.95 0.98 1.02 1.10 1.18 1.33
token | B200, nvfp4, mixture, trtllm | 90 7 | 0.77 0.83 0.88 0.91 0.94 0.96 0.98 1.00 1.09 1.33 1.55
token | B200, nvfp4, mixture, vllm | 51 4 | 0.84 0.87 0.90 0.91 0.93 0.96 1.00 1.04 1.13 1.15 1.30
token | B300, fp8-block, mixture | 113 8 | 0.68 0.78 0.85 0.90 0.94 0.97 1.00 1.03 1.06 1.15 1.32
token | B300, fp8-block, mixture, sglang | 58 5 | 0.64 0.69 0.80 0.86 0.88 0.92 0.96 1.03 1.12 1.22 2.20
token | B300, mixture | 219 16 | 0.77 0.83 0.90 0.93 0.97 1.00 1.03 1.05 1.10 1.17 1.44
token | B300, nvfp4, mixture | 86 6 | 0.84 0.88 0.93 0.99 1.02 1.04 1.06 1.11 1.14 1.24 1.77
token | H100, bf16, dense | 283 10 | 0.81 0.86 0.91 0.96 0.98 1.00 1.02 1.05 1.08 1.13 1.20
token | H100, bf16, dense, trtllm | 136 4 | 0.87 0.91 0.96 0.99 1.01 1.02 1.04 1.07 1.10 1.19 1.29
token | H100, dense | 516 19 | 0.84 0.88 0.93 0.97 0.99 1.00 1.02 1.04 1.08 1.17 1.27
token | H100, fp8, dense | 54 4 | 0.98 0.99 0.99 1.00 1.01 1.02 1.04 1.06 1.10 1.44 1.70
token | H100, fp8-block, dense | 179 5 | 0.88 0.90 0.92 0.96 0.98 0.99 1.01 1.03 1.07 1.21 1.26
token | H100, fp8-block, dense, trtllm | 176 4 | 0.88 0.90 0.92 0.96 0.98 0.99 1.00 1.02 1.05 1.13 1.27
token | H100, mixture | 186 7 | 0.47 0.78 0.83 0.87 0.92 0.95 0.97 1.00 1.03 1.13 1.22
token | H100, mxfp4, mixture | 60 5 | 0.13 0.29 0.83 0.89 0.93 0.95 0.96 0.97 1.01 1.28 1.43
token | H100, mxfp4, mixture, vllm | 56 4 | 0.12 0.23 0.80 0.89 0.93 0.94 0.95 0.96 0.97 1.13 1.32
token | H200, dense | 115 8 | 0.84 0.85 0.90 0.93 0.95 0.97 0.99 1.01 1.04 1.14 1.24
token | H200, fp8, dense | 115 8 | 0.84 0.85 0.90 0.93 0.95 0.97 0.99 1.01 1.04 1.14 1.24
token | H200, fp8-block, mixture | 175 11 | 0.81 0.86 0.92 0.95 0.99 1.04 1.09 1.13 1.17 1.23 1.29
token | H200, fp8-block, mixture, sglang | 70 4 | 0.83 0.87 0.91 0.93 0.95 0.99 1.02 1.05 1.11 1.19 1.26
token | H200, fp8-block, mixture, trtllm | 53 4 | 0.95 0.95 1.01 1.05 1.08 1.12 1.15 1.17 1.21 1.27 1.32
token | H200, mixture | 346 19 | 0.84 0.89 0.94 0.97 1.00 1.02 1.05 1.08 1.13 1.19 1.24
token | H200, mxfp4, mixture | 126 7 | 0.86 0.92 0.96 0.99 1.01 1.03 1.04 1.06 1.08 1.12 1.15
token | H200, mxfp4, mixture, trtllm | 81 4 | 0.86 0.89 0.94 0.96 0.99 1.02 1.04 1.08 1.12 1.14 1.19
token | MI300X, fp8-block, mixture | 16 5 | 0.68 0.79 0.93 0.97 1.06 1.14 1.51 1.64 2.10 2.17 2.18
token | MI300X, fp8-block, mixture, sglang | 16 5 | 0.68 0.79 0.93 0.97 1.06 1.14 1.51 1.64 2.10 2.17 2.18
token | MI300X, mixture | 16 5 | 0.68 0.79 0.93 0.97 1.06 1.14 1.51 1.64 2.10 2.17 2.18
token | RTX-4090, dense | 23 8 | 0.77 0.79 0.84 0.86 0.88 1.01 1.03 1.04 1.15 1.35 1.57
token | RTX-4090, int4, dense | 17 6 | 0.77 0.78 0.82 0.84 0.98 1.02 1.05 1.12 1.23 1.46 1.72
token | RTX-4090, int4, dense, other | 13 5 | 0.77 0.77 0.80 0.83 0.85 0.99 1.12 1.23 1.30 1.53 1.81
token | ada, dense | 27 10 | 0.78 0.80 0.84 0.86 0.89 1.01 1.03 1.11 1.15 1.28 1.51
token | ada, int4, dense | 21 8 | 0.77 0.79 0.84 0.85 0.94 1.02 1.08 1.13 1.21 1.38 1.61
token | ampere, bf16, dense | 15 6 | 0.85 0.86 0.91 0.94 1.03 1.17 1.24 1.25 1.29 1.35 1.40
token | ampere, dense | 58 24 | 0.81 0.86 0.90 0.94 0.98 1.00 1.05 1.11 1.20 1.28 1.40
token | ampere, int4, dense | 34 15 | 0.78 0.83 0.88 0.93 0.98 0.99 1.04 1.06 1.12 1.25 1.68
token | blackwell, dense | 111 7 | 0.87 0.90 0.92 0.94 0.96 0.98 1.00 1.03 1.06 1.09 1.14
token | blackwell, fp8-block, mixture | 322 19 | 0.75 0.82 0.90 0.94 0.97 1.01 1.05 1.08 1.15 1.22 1.30
token | blackwell, mixture | 735 47 | 0.76 0.82 0.89 0.93 0.96 0.99 1.03 1.06 1.12 1.21 1.30
token | blackwell, mxfp4, mixture | 104 5 | 0.76 0.85 0.93 0.95 0.97 0.99 1.01 1.03 1.05 1.09 1.26
token | blackwell, nvfp4, dense | 66 4 | 0.87 0.90 0.91 0.94 0.96 0.98 1.00 1.03 1.07 1.09 1.14
token | blackwell, nvfp4, mixture | 289 21 | 0.77 0.82 0.88 0.91 0.94 0.98 1.01 1.06 1.12 1.21 1.49
token | cdna3, fp8-block, mixture | 16 5 | 0.68 0.79 0.93 0.97 1.06 1.14 1.51 1.64 2.10 2.17 2.18
token | cdna3, mixture | 16 5 | 0.68 0.79 0.93 0.97 1.06 1.14 1.51 1.64 2.10 2.17 2.18
token | dense | 837 73 | 0.84 0.87 0.92 0.95 0.98 1.00 1.02 1.04 1.08 1.19 1.28
token | hopper, bf16, dense | 285 11 | 0.81 0.86 0.91 0.96 0.99 1.01 1.02 1.05 1.09 1.13 1.20
token | hopper, dense | 639 30 | 0.84 0.87 0.92 0.96 0.98 1.00 1.02 1.04 1.08 1.17 1.27
token | hopper, fp8, dense | 169 12 | 0.84 0.88 0.93 0.96 0.98 1.00 1.01 1.03 1.07 1.20 1.44
token | hopper, fp8-block, dense | 179 5 | 0.88 0.90 0.92 0.96 0.98 0.99 1.01 1.03 1.07 1.21 1.26
token | hopper, fp8-block, mixture | 301 13 | 0.79 0.82 0.87 0.93 0.97 1.00 1.04 1.08 1.14 1.19 1.26
token | hopper, mixture | 532 26 | 0.79 0.83 0.91 0.95 0.97 1.00 1.02 1.06 1.11 1.18 1.24
token | hopper, mxfp4, mixture | 186 12 | 0.72 0.86 0.93 0.95 0.97 1.00 1.03 1.05 1.08 1.14 1.23
token | mixture | 1285 79 | 0.77 0.83 0.90 0.94 0.97 1.00 1.03 1.06 1.12 1.20 1.30
""")
"""Measured over predicted, cross-validated: rows, groups, and the factors at ``LEVELS``."""
