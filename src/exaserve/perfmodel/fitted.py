"""Constants of the performance model and the errors of its predictions, made by ``scripts/fit_speed.py``.

:mod:`exaserve.perfmodel.constants` says what they mean; what is not here is as expected there.
"""

from __future__ import annotations

from collections.abc import Mapping

from exaserve.perfmodel.confidence import Errors, parse_errors
from exaserve.perfmodel.constants import parse_constants

__all__ = ["ERRORS", "FITTED"]

FITTED: Mapping[str, float] = parse_constants("""
accepted/1 1.85
admit/llamacpp 0.00165
admit/trtllm 0.00239
attention-matrix-engine/llamacpp 0.603
attention-matrix-engine/sglang 0.64
attention-matrix-engine/trtllm 1.19
attention-matrix-engine/vllm 1.28
attention-matrix/ada 0.336
attention-matrix/ampere 0.351
attention-matrix/blackwell 0.36
attention-matrix/hopper 0.452
attention/ada 0.68
attention/blackwell 0.965
attention/hopper 0.837
bandwidth-card/A100-40 0.967
bandwidth-card/A100-80 0.936
bandwidth-card/A100-80-PCIE 0.913
bandwidth-card/A40 1.02
bandwidth-card/B300 1.07
bandwidth-card/H100 1.07
bandwidth-card/H100-PCIE 0.954
bandwidth-card/L4 0.985
bandwidth-card/L40S 0.986
bandwidth-card/MI300X 0.97
bandwidth-card/RTX-3090 1.05
bandwidth-card/RTX-3090-TI 1.08
bandwidth-card/RTX-4090 1.02
bandwidth-card/RTX-5090 1.02
bandwidth-card/RTX-6000-ADA 1.02
bandwidth-format/fp8-block/blackwell 0.862
bandwidth-format/fp8-block/hopper 1.09
bandwidth-format/fp8/ada 0.89
bandwidth-format/fp8/blackwell 1.12
bandwidth-format/fp8/cdna3 0.917
bandwidth-format/fp8/hopper 1.17
bandwidth-format/int4/ada 0.948
bandwidth-format/int4/blackwell-geforce 1.06
bandwidth-format/int4/hopper 0.756
bandwidth-format/int8-weights/ampere 1.06
bandwidth-format/mxfp4/cdna4 0.946
bandwidth/ada 0.929
bandwidth/ampere 0.758
bandwidth/blackwell 0.886
bandwidth/cdna3 0.809
bandwidth/hopper 0.881
experts-engine/sglang/bf16 1.1
experts-engine/sglang/blackwell 1.34
experts-engine/sglang/cdna3 0.848
experts-engine/sglang/hopper 0.863
experts-engine/sglang/mxfp4 0.847
experts-engine/sglang/nvfp4 1.09
experts-engine/trtllm/ampere 0.878
experts-engine/trtllm/bf16 0.818
experts-engine/trtllm/blackwell 1.07
experts-engine/trtllm/fp8 0.925
experts-engine/trtllm/fp8-block 1.13
experts-engine/trtllm/hopper 1.14
experts-engine/trtllm/mxfp4 1.16
experts-engine/trtllm/nvfp4 1.09
experts-engine/vllm/bf16 1.13
experts-engine/vllm/blackwell 1.19
experts-engine/vllm/mxfp4 1.15
experts-matrix/bf16/ampere 0.502
experts-matrix/bf16/hopper 0.498
experts-matrix/fp8-block/blackwell 0.242
experts-matrix/fp8-block/cdna3 0.269
experts-matrix/fp8-block/hopper 0.205
experts-matrix/fp8/ada 0.38
experts-matrix/fp8/hopper 0.398
experts-matrix/mxfp4/ampere 0.338
experts-matrix/mxfp4/blackwell 0.251
experts-matrix/mxfp4/hopper 0.189
experts-matrix/nvfp4/blackwell 0.365
experts-skew 0.864
experts/bf16/ampere 0.56
experts/bf16/blackwell 0.926
experts/fp8-block/blackwell 0.853
experts/fp8-block/cdna3 0.483
experts/fp8-block/hopper 1.01
experts/fp8/hopper 0.569
experts/mxfp4/blackwell 1.05
experts/mxfp4/hopper 0.636
experts/nvfp4/blackwell 0.953
first/sglang 0.0284
first/trtllm 0.0304
first/vllm 0.015
layer-engine/llamacpp/ada 0.943
layer-engine/llamacpp/ampere 1.1
layer-engine/llamacpp/bf16 1.1
layer-engine/llamacpp/hopper 1.09
layer-engine/other/ampere 0.946
layer-engine/other/int4 0.903
layer-engine/sglang/ampere 1.14
layer-engine/sglang/bf16 0.792
layer-engine/sglang/blackwell 0.948
layer-engine/sglang/cdna3 1.11
layer-engine/sglang/fp8 1.17
layer-engine/sglang/fp8-block 1.14
layer-engine/sglang/hopper 0.863
layer-engine/sglang/nvfp4 0.959
layer-engine/trtllm/bf16 1.29
layer-engine/trtllm/blackwell 1.05
layer-engine/trtllm/fp8 0.783
layer-engine/trtllm/fp8-block 1.38
layer-engine/trtllm/mxfp4 0.846
layer-engine/trtllm/nvfp4 0.857
layer-engine/vllm/ampere 1.14
layer-engine/vllm/blackwell 0.9
layer-engine/vllm/fp8-block 1.16
layer-engine/vllm/hopper 1.06
layer-engine/vllm/mxfp4 0.867
layer-engine/vllm/nvfp4 1.1
layer-release/llamacpp/any 1.13
layer-release/other/any 0.924
layer-release/sglang/0.5.6 1.23
layer-release/sglang/0.5.7 0.843
layer-release/trtllm/0 1.12
layer-release/trtllm/1.0 0.872
layer-release/trtllm/1.1 1.4
layer-release/trtllm/1.2 0.738
layer-release/vllm/0.12-0.17 0.915
layer-release/vllm/0.18 0.895
layer-release/vllm/0.7 1.37
layer/llamacpp 7.31e-05
layer/other 3.28e-05
layer/sglang 5.25e-05
layer/vllm 6.49e-05
link/nvlink/ampere 0.455
link/nvlink/blackwell 0.481
link/nvlink/hopper 0.618
link/pcie/ada 0.646
link/pcie/ampere 0.462
link/xgmi/cdna3 0.245
matrix-card/A100-40 0.975
matrix-card/A100-80 1.07
matrix-card/A10G 0.936
matrix-card/A40 0.935
matrix-card/B200 0.892
matrix-card/B300 1.05
matrix-card/H100 1.04
matrix-card/H100-PCIE 0.887
matrix-card/H200 1.05
matrix-card/L4 0.975
matrix-card/L40S 0.94
matrix-card/RTX-3090 1.1
matrix-card/RTX-4070-TI-SUPER 1.05
matrix-card/RTX-4090 1.1
matrix-card/RTX-5070-TI 1.04
matrix-card/RTX-5080 0.96
matrix-card/RTX-5090 1.06
matrix-engine/llamacpp 0.675
matrix-engine/llamacpp/hopper 0.716
matrix-engine/sglang 1.27
matrix-engine/trtllm 1.3
matrix-halves 2.23
matrix/bf16/ada 0.665
matrix/bf16/ampere 0.578
matrix/bf16/hopper 0.723
matrix/fp8-block/ampere 0.409
matrix/fp8-block/blackwell 0.442
matrix/fp8-block/hopper 0.364
matrix/int4/ada 0.442
matrix/int4/ampere 0.445
matrix/int4/blackwell-geforce 0.704
matrix/int4/hopper 0.414
matrix/nvfp4/blackwell 0.415
meeting/sglang/even 0.704
meeting/sglang/spread 0.862
meeting/trtllm/even 0.913
meeting/trtllm/spread 0.906
meeting/vllm/spread 0.825
mla 3.49e-05
mla-engine/sglang 1.6
mla-engine/trtllm 1.67
mla-engine/vllm 0.536
moe-engine/sglang/bf16 0.926
moe-engine/sglang/blackwell 0.745
moe-engine/sglang/cdna3 1.66
moe-engine/sglang/fp8-block 1.58
moe-engine/sglang/hopper 0.868
moe-engine/sglang/nvfp4 0.714
moe-engine/trtllm/blackwell 0.732
moe-engine/trtllm/fp8 1.11
moe-engine/trtllm/fp8-block 0.654
moe-engine/trtllm/hopper 1.33
moe-engine/trtllm/mxfp4 1.43
moe-engine/trtllm/nvfp4 0.926
moe-engine/vllm/blackwell 0.919
moe-engine/vllm/fp8-block 1.81
moe-engine/vllm/hopper 1.11
moe-engine/vllm/int4 0.862
moe-engine/vllm/mxfp4 0.818
moe-engine/vllm/nvfp4 0.837
moe-release/sglang/0.5.6 0.822
moe-release/sglang/0.5.7 1.3
moe-release/trtllm/1.0 1.14
moe-release/trtllm/1.1 1.19
moe-release/trtllm/1.2 0.728
moe-release/vllm/0.12-0.17 1.08
moe-release/vllm/0.18 0.712
moe-release/vllm/0.8-0.11 1.37
moe-whole/sglang 1.14
moe-whole/trtllm 1.29
moe/sglang 3.89e-05
overlap 0.718
passes 10.7
pipelined 0.373
prompt-moe/sglang 0.00116
prompt-moe/trtllm 3.86e-05
prompt-moe/vllm 7.76e-05
prompt/llamacpp 7.2e-05
prompt/sglang 4.75e-05
prompt/trtllm 4.86e-05
prompt/vllm 6.52e-05
ranks-wait 1.37
reduce-engine/other 0.881
reduce-engine/sglang 0.937
reduce-engine/trtllm 0.951
reduce-pcie 3.23
reduce-ranks/1 0.744
reduce-ranks/8 1.07
reduce/ada 5.36e-06
reduce/ampere 5.38e-06
reduce/blackwell 4.14e-06
reduce/cdna3 6.95e-06
reduce/hopper 5.32e-06
sequence/sglang 3.77e-06
sequence/trtllm 7.53e-06
sequence/vllm 3.45e-06
state 1.71e-05
stream/sglang 1.37e-05
""")

ERRORS: Mapping[str, Mapping[str, Errors]] = parse_errors("""
among few |  | 278 80 | 0.75 0.83 0.91 0.99 1.07 1.16 1.23 1.51 1.80 2.37 3.13
among few | B200, dense | 21 7 | 0.83 0.88 0.89 1.00 1.03 1.10 1.22 1.65 1.79 2.03 2.57
among few | B200, fp8-block, mixture | 36 8 | 0.73 1.09 1.15 1.21 1.23 1.51 1.68 2.06 2.14 2.62 3.53
among few | B200, mixture | 86 24 | 0.72 0.85 0.98 1.08 1.15 1.21 1.27 1.88 2.16 2.65 3.96
among few | B200, nvfp4, mixture | 35 11 | 0.74 0.82 0.92 1.05 1.14 1.22 1.82 2.16 2.42 3.10 9.27
among few | B300, fp8-block, mixture | 20 8 | 0.72 1.00 1.12 1.13 1.16 1.18 1.21 1.32 1.74 4.67 6.51
among few | B300, mixture | 42 16 | 0.86 0.91 0.98 1.06 1.11 1.15 1.18 1.21 1.35 2.69 5.05
among few | B300, nvfp4, mixture | 18 6 | 0.86 0.88 0.93 0.98 1.05 1.12 1.18 1.21 1.28 2.65 3.48
among few | H100, mixture | 23 6 | 0.74 0.75 0.82 0.88 0.94 1.00 1.39 1.55 1.75 1.93 2.00
among few | H200, fp8-block, mixture | 40 8 | 0.92 0.95 1.02 1.22 1.35 1.41 1.62 1.69 1.95 2.77 4.71
among few | H200, mixture | 76 16 | 0.84 0.93 0.98 1.04 1.12 1.25 1.39 1.57 1.71 1.96 2.77
among few | H200, mxfp4, mixture | 27 7 | 0.81 0.85 0.97 1.00 1.03 1.07 1.09 1.45 1.57 1.74 1.80
among few | blackwell, dense | 21 7 | 0.83 0.88 0.89 1.00 1.03 1.10 1.22 1.65 1.79 2.03 2.57
among few | blackwell, fp8-block, mixture | 56 16 | 0.81 1.09 1.12 1.16 1.21 1.23 1.50 1.78 2.10 2.65 4.47
among few | blackwell, mixture | 128 40 | 0.74 0.88 0.98 1.07 1.12 1.18 1.22 1.51 2.08 2.65 4.02
among few | blackwell, nvfp4, mixture | 53 17 | 0.78 0.84 0.92 0.99 1.08 1.18 1.23 1.84 2.37 2.97 3.92
among few | dense | 49 17 | 0.78 0.80 0.87 0.89 0.91 0.96 1.01 1.09 1.61 2.07 3.04
among few | hopper, dense | 28 10 | 0.76 0.79 0.82 0.87 0.90 0.90 0.95 0.97 1.02 2.22 3.25
among few | hopper, fp8, dense | 24 8 | 0.75 0.78 0.82 0.86 0.88 0.90 0.90 0.95 0.96 1.10 2.77
among few | hopper, fp8-block, mixture | 52 10 | 0.93 0.95 1.20 1.32 1.39 1.56 1.62 1.77 1.95 2.52 4.30
among few | hopper, mixture | 99 22 | 0.79 0.84 0.95 1.00 1.08 1.25 1.39 1.57 1.73 1.95 2.56
among few | hopper, mxfp4, mixture | 38 11 | 0.75 0.76 0.84 0.90 0.98 1.00 1.04 1.08 1.47 1.64 1.77
among few | mixture | 229 63 | 0.75 0.85 0.95 1.04 1.12 1.19 1.27 1.56 1.81 2.38 3.47
first |  | 66 37 | 0.63 0.71 0.82 0.88 0.93 0.98 1.02 1.10 1.18 1.30 1.53
first | ada, dense | 21 12 | 0.58 0.74 0.83 0.88 0.94 1.02 1.02 1.10 1.19 1.38 1.86
first | ada, int4, dense | 13 8 | 0.52 0.68 0.90 0.96 1.01 1.02 1.04 1.15 1.29 1.67 2.16
first | ampere, bf16, dense | 10 6 | 0.70 0.70 0.73 0.80 0.86 0.91 0.97 1.01 1.07 1.17 1.20
first | ampere, dense | 24 12 | 0.71 0.73 0.82 0.84 0.90 0.97 1.01 1.09 1.17 1.21 1.33
first | ampere, int4, dense | 14 6 | 0.75 0.81 0.83 0.88 0.95 1.00 1.08 1.16 1.20 1.29 1.48
first | dense | 64 35 | 0.62 0.71 0.82 0.88 0.93 0.98 1.02 1.09 1.20 1.33 1.53
first | hopper, dense | 16 8 | 0.60 0.71 0.89 0.92 0.95 0.97 1.00 1.06 1.26 1.53 1.92
offline |  | 289 67 | 0.54 0.68 0.81 0.90 0.94 1.00 1.04 1.08 1.14 1.22 1.28
offline | A100-80, dense | 28 9 | 0.77 0.83 0.92 0.94 0.97 0.99 1.01 1.03 1.05 1.23 1.24
offline | H100, dense | 23 8 | 0.40 0.45 0.52 0.61 0.69 0.88 0.92 0.93 1.03 1.14 1.21
offline | H100, mixture | 61 15 | 0.30 0.70 0.79 0.89 0.93 0.97 1.02 1.06 1.15 1.31 1.37
offline | H100, mxfp4, mixture | 30 7 | 0.25 0.29 0.70 0.86 0.92 0.97 1.00 1.05 1.06 1.14 1.15
offline | H200, mixture | 29 7 | 0.32 0.50 0.73 0.87 0.95 1.00 1.03 1.08 1.13 1.24 1.27
offline | ampere, bf16, dense | 38 9 | 0.62 0.75 0.87 0.92 0.98 1.03 1.05 1.08 1.16 1.24 1.28
offline | ampere, dense | 42 13 | 0.64 0.78 0.88 0.94 0.97 1.01 1.04 1.06 1.14 1.24 1.26
offline | ampere, mixture | 33 6 | 0.57 0.61 0.79 0.89 1.00 1.05 1.08 1.10 1.15 1.33 1.49
offline | dense | 139 33 | 0.57 0.68 0.86 0.92 0.96 1.00 1.03 1.07 1.13 1.17 1.23
offline | hopper, dense | 56 13 | 0.46 0.53 0.72 0.90 0.93 0.99 1.02 1.05 1.10 1.14 1.18
offline | hopper, fp8, dense | 45 8 | 0.87 0.90 0.92 0.97 1.01 1.02 1.05 1.10 1.13 1.15 1.18
offline | hopper, mixture | 90 22 | 0.30 0.65 0.77 0.89 0.93 0.99 1.02 1.06 1.14 1.26 1.35
offline | hopper, mxfp4, mixture | 37 9 | 0.28 0.39 0.71 0.86 0.93 0.97 1.02 1.06 1.07 1.15 1.16
offline | mixture | 150 34 | 0.53 0.68 0.77 0.87 0.92 0.99 1.04 1.09 1.15 1.26 1.34
static |  | 72 19 | 0.89 0.93 0.94 0.96 0.99 1.01 1.03 1.08 1.27 2.19 2.79
static | dense | 70 17 | 0.89 0.92 0.94 0.96 0.99 1.01 1.04 1.08 1.28 2.30 2.81
static | hopper, dense | 24 8 | 0.91 0.93 0.93 0.94 0.99 1.04 1.22 1.43 2.42 3.02 3.41
token |  | 2110 158 | 0.80 0.85 0.91 0.94 0.97 0.99 1.02 1.05 1.10 1.19 1.30
token | A100-80, dense | 33 12 | 0.90 0.92 0.94 0.97 0.99 1.03 1.12 1.20 1.22 1.31 1.69
token | A100-80, int4, dense | 17 7 | 0.89 0.92 0.96 0.98 1.00 1.03 1.13 1.21 1.25 1.64 1.85
token | A100-80, int4, dense, vllm | 15 6 | 0.88 0.92 0.95 0.97 0.99 1.02 1.04 1.14 1.22 1.71 1.87
token | B200, dense | 111 7 | 0.88 0.91 0.94 0.96 0.98 1.00 1.02 1.04 1.05 1.09 1.13
token | B200, fp8-block, mixture | 209 11 | 0.78 0.85 0.93 0.97 1.00 1.04 1.07 1.11 1.16 1.27 1.32
token | B200, mixture | 515 30 | 0.77 0.83 0.89 0.93 0.97 0.99 1.03 1.07 1.13 1.21 1.31
token | B200, nvfp4, mixture | 202 14 | 0.77 0.83 0.88 0.90 0.94 0.97 1.00 1.07 1.12 1.21 1.36
token | B200, nvfp4, mixture, trtllm | 90 7 | 0.76 0.83 0.89 0.91 0.96 0.98 1.03 1.08 1.12 1.36 1.54
token | B300, fp8-block, mixture | 113 8 | 0.71 0.81 0.87 0.91 0.95 0.98 1.00 1.03 1.06 1.13 1.37
token | B300, mixture | 219 16 | 0.78 0.83 0.89 0.93 0.96 0.99 1.01 1.04 1.08 1.15 1.45
token | B300, nvfp4, mixture | 86 6 | 0.82 0.86 0.92 0.95 1.00 1.02 1.05 1.08 1.12 1.22 1.71
token | H100, bf16, dense | 277 9 | 0.75 0.80 0.92 0.95 0.97 0.99 1.01 1.03 1.06 1.12 1.18
token | H100, dense | 511 19 | 0.80 0.88 0.93 0.96 0.99 1.00 1.02 1.04 1.07 1.15 1.27
token | H100, mixture | 177 7 | 0.81 0.83 0.86 0.89 0.93 0.95 0.97 0.98 0.99 1.05 1.22
token | H200, dense | 115 8 | 0.84 0.85 0.90 0.93 0.95 0.97 0.99 1.02 1.06 1.17 1.23
token | H200, fp8, dense | 115 8 | 0.84 0.85 0.90 0.93 0.95 0.97 0.99 1.02 1.06 1.17 1.23
token | H200, fp8-block, mixture | 175 11 | 0.82 0.86 0.92 0.95 0.99 1.02 1.07 1.11 1.16 1.27 1.37
token | H200, mixture | 346 19 | 0.84 0.89 0.93 0.96 0.98 1.02 1.04 1.06 1.12 1.18 1.27
token | H200, mxfp4, mixture | 126 7 | 0.88 0.91 0.96 0.99 1.01 1.02 1.04 1.06 1.08 1.12 1.16
token | RTX-4090, dense | 25 10 | 0.79 0.80 0.87 0.91 0.92 1.00 1.09 1.11 1.12 1.30 1.53
token | RTX-4090, int4, dense | 19 8 | 0.78 0.80 0.87 0.89 0.97 1.09 1.11 1.12 1.21 1.39 1.66
token | ada, dense | 32 15 | 0.79 0.84 0.88 0.90 0.92 0.99 1.06 1.11 1.13 1.22 1.44
token | ada, int4, dense | 26 13 | 0.79 0.81 0.87 0.89 0.92 1.04 1.10 1.12 1.15 1.27 1.50
token | ampere, dense | 52 22 | 0.79 0.85 0.90 0.94 0.97 1.00 1.04 1.15 1.22 1.29 1.39
token | ampere, int4, dense | 32 15 | 0.78 0.80 0.87 0.93 0.96 1.00 1.03 1.08 1.20 1.26 1.67
token | blackwell, dense | 111 7 | 0.88 0.91 0.94 0.96 0.98 1.00 1.02 1.04 1.05 1.09 1.13
token | blackwell, fp8-block, mixture | 322 19 | 0.75 0.83 0.91 0.95 0.98 1.01 1.04 1.08 1.13 1.23 1.33
token | blackwell, mixture | 735 47 | 0.77 0.83 0.89 0.93 0.97 0.99 1.02 1.06 1.11 1.20 1.31
token | blackwell, nvfp4, mixture | 289 21 | 0.78 0.83 0.88 0.91 0.95 0.99 1.02 1.07 1.12 1.21 1.47
token | dense | 834 79 | 0.82 0.87 0.92 0.95 0.98 1.00 1.02 1.05 1.08 1.19 1.27
token | hopper, bf16, dense | 279 10 | 0.75 0.80 0.92 0.95 0.97 0.99 1.01 1.03 1.06 1.13 1.20
token | hopper, dense | 634 30 | 0.81 0.87 0.92 0.96 0.98 1.00 1.02 1.04 1.07 1.16 1.27
token | hopper, fp8, dense | 169 12 | 0.84 0.87 0.93 0.96 0.98 1.00 1.02 1.05 1.07 1.20 1.42
token | hopper, fp8-block, mixture | 301 13 | 0.80 0.84 0.87 0.93 0.95 0.97 1.01 1.05 1.11 1.21 1.31
token | hopper, mixture | 523 26 | 0.82 0.85 0.90 0.94 0.96 0.98 1.01 1.04 1.09 1.16 1.27
token | hopper, mxfp4, mixture | 177 12 | 0.86 0.89 0.94 0.97 0.98 1.01 1.03 1.05 1.08 1.13 1.19
token | mixture | 1276 79 | 0.80 0.84 0.90 0.93 0.97 0.99 1.02 1.06 1.11 1.19 1.34
""")
"""Measured over predicted, cross-validated: rows, groups, and the factors at ``LEVELS``."""
