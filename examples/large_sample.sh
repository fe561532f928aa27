#!/usr/bin/env bash
# A sample too large for a process with 2 GiB of address space, trained on by four that share it: the heat
# equation on 256 x 256 x 256 points. Takes python3 with numpy, mpirun, 7 GiB of memory and 0.5 GiB of disk.
#
#   examples/large_sample.sh FOLDER
#   MPIRUN='mpirun --oversubscribe' examples/large_sample.sh FOLDER    on less than four cores
set -euo pipefail
mkdir -p "$1" && cd "$1"
export OMP_NUM_THREADS=1

# A sum of waves, and what is left of it after some time.
"${PYTHON:-python3}" - <<'P'
import numpy as np

rng = np.random.default_rng(0)
n, samples = 256, 4
at = 2 * np.pi * np.arange(n) / n
x, y = np.zeros((2, samples, 1, n, n, n), "f4")
for s in range(samples):
    for _ in range(6):
        k = rng.integers(1, 5, 3)
        u, v, w = (np.sin(k[d] * at + rng.uniform(0, 2 * np.pi)) for d in range(3))
        wave = np.einsum("i,j,k", u, v, w).astype("f4")
        x[s, 0] += wave
        y[s, 0] += np.exp(-0.05 * (k @ k)) * wave
np.save("cube_train_256_x.npy", x)
np.save("cube_train_256_y.npy", y)
P

cat >cube.yaml <<'Y'
fno: {n_modes: [16, 16, 16], hidden_channels: 8, n_layers: 3}
opt: {name: adam, n_epochs: 2, learning_rate: 0.002}
data: {root: ., set: cube, train_resolution: 256x256x256, test_resolutions: [], batch_size: 1, n_train: 2}
Y

ulimit -v $((2 << 20)) # KiB, of each process from here on
tgrad train cube.yaml --run alone --threads 1 && exit 1
${MPIRUN:-mpirun} -n 4 tgrad train cube.yaml --run four --threads 1 --distributed.split 4
