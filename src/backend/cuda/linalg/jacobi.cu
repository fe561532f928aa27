/* Small Hermitian eigenproblems by Jacobi rotations, all n / 2 disjoint ones of a round at once.
 *
 * One block rotates the matrix: a thread has the 2 x 2 entries at pair P of the rows and pair Q <=
 * P of the columns. A round zeroes the off-diagonal entry of each pair. Then all indices except the
 * first move on by one place, so that 2 * pairs - 1 rounds (a sweep) pair each index with each
 * other and restore the order. The rotations are recorded, and a second kernel applies them to the
 * rows of the identity, which are independent: many blocks. Odd sizes get one more index, with
 * entries 0, that no rotation touches. Real problems run as complex ones. */
#include <float.h>

#include "backend/cuda/linalg/decompose.cuh"

enum {
    SWEEPS = 30,  /* at most; 8 to 15 are usual */
    ROWS = 4,     /* of the vectors in a block */
    STAGE = 16,   /* rounds whose rotations a block reads at once */
    THREADS = 672 /* for the 36 * 37 / 2 of the largest matrix */
};

/* Columns (x, y) become (c x - conj(z) y, z x + c y), c^2 + |z|^2 = 1. */
struct rotation {
    double c;
    pair<double> z;
};

/* Written by the first kernel for the second; the rotations (rounds, pairs) follow. */
struct alignas(8) jacobi_log {
    int rounds;
    int rank[CUDA_JACOBI_MAX_N]; /* of an index among the eigenvalues, largest first */
};

static __device__ inline rotation *rotations_of(jacobi_log *log) {
    return reinterpret_cast<rotation *>(log + 1);
}

size_t cuda_jacobi_bytes(int64_t n) {
    const size_t pairs = (size_t)(n + 1) / 2;
    return sizeof(jacobi_log) + SWEEPS * (2 * pairs - 1) * pairs * sizeof(rotation);
}

/* Place of an index in the next round; places 2 P and 2 P + 1 are pair P. The even ones move up,
 * the odd ones down, around the first. */
static __device__ inline int moved(int place, int pairs) {
    if (place == 0 || pairs == 1) {
        return place;
    }
    if (place % 2 == 0) {
        return place == 2 * pairs - 2 ? place + 1 : place + 2;
    }
    return place == 1 ? 2 : place - 2;
}

static __device__ inline void turn_columns(const rotation &r, pair<double> *x, pair<double> *y) {
    const pair<double> old = *x;
    *x = r.c * old - conj(r.z) * *y;
    *y = r.z * old + r.c * *y;
}

/* ---- rotating the matrix ---- */

/* The entries of a thread: rows 2 P, 2 P + 1 and columns 2 Q, 2 Q + 1. On the diagonal entry [0][1]
 * is not kept. */
struct entries {
    int p, q; /* the pairs, -1: an idle thread */
    pair<double> at[2][2];
};

/* The thread that holds them. Threads on the diagonal, which compute the rotations, come first and
 * so fill few warps. */
static __device__ inline int thread_of(int p, int q, int pairs) {
    return p == q ? p : pairs + p * (p - 1) / 2 + q;
}

/* The Hermitian part of a, times 2 `factor`. */
template <class E>
static __device__ void load_entries(int n, const E *a, double factor, int pairs, entries *mine) {
    const int thread = threadIdx.x;
    int p = thread;
    if (thread >= pairs) {
        for (p = 1; thread_of(p + 1, 0, pairs) <= thread;) {
            p++;
        }
    }
    mine->p = p < pairs ? p : -1;
    mine->q = thread < pairs ? p : thread - thread_of(p, 0, pairs);
    for (int e = 0; e < 4 && p < pairs; e++) {
        const int i = 2 * p + e / 2, j = 2 * mine->q + e % 2;
        pair<double> value = {0.0, 0.0};
        if (i < n && j < n) {
            value = factor * to_double(a[i * n + j]) + factor * conj(to_double(a[j * n + i]));
        }
        mine->at[e / 2][e % 2] = value;
    }
}

/* The rotation that makes the entry between the pair zero; it is applied to the entries here. With
 * d = a_qq - a_pp and h = sqrt(d^2 + 4 |a_pq|^2): c^2 = (1 + |d| / h) / 2, z = +-a_pq / (h c). */
static __device__ rotation annihilate(entries *mine) {
    const pair<double> pq = conj(mine->at[1][0]);
    const double square = abs2(pq), d = mine->at[1][1].re - mine->at[0][0].re;
    if (square < 1e-290) { /* negligible next to entries near 1; smaller squares lose precision */
        return {1.0, {0.0, 0.0}};
    }
    const double over_h = copysign(rsqrt(d * d + 4.0 * square), d);
    const double c2 = 0.5 + 0.5 * d * over_h, over_c = rsqrt(c2);
    const double step = square * over_h * over_c * over_c;
    mine->at[0][0] = {mine->at[0][0].re - step, 0.0};
    mine->at[1][1] = {mine->at[1][1].re + step, 0.0};
    mine->at[1][0] = {0.0, 0.0};
    return {c2 * over_c, (over_h * over_c) * pq};
}

/* Both sides of entries off the diagonal. */
static __device__ inline void rotate(const rotation &rows, const rotation &columns, entries *mine) {
    const rotation adjoint = {rows.c, conj(rows.z)};
    for (int i = 0; i < 2; i++) {
        turn_columns(columns, &mine->at[i][0], &mine->at[i][1]);
    }
    for (int j = 0; j < 2; j++) {
        turn_columns(adjoint, &mine->at[0][j], &mine->at[1][j]);
    }
}

/* Moves entries through shared memory to the threads that hold them in the next round: four arrays
 * of all threads' entries, `count` long. */
static __device__ inline void send(const entries &mine, int pairs, int count, double2 *shared) {
    for (int e = 0; e < 4; e++) {
        if (mine.p < 0 || (mine.p == mine.q && e == 1)) {
            continue;
        }
        const int i = moved(2 * mine.p + e / 2, pairs), j = moved(2 * mine.q + e % 2, pairs);
        const int low = i < j ? i : j, high = i < j ? j : i;
        const pair<double> x = mine.at[e / 2][e % 2];
        shared[(high % 2 * 2 + low % 2) * count + thread_of(high / 2, low / 2, pairs)] =
            make_double2(x.re, i < j ? -x.im : x.im);
    }
}

static __device__ inline void receive(entries *mine, int count, const double2 *shared) {
    for (int e = 0; e < 4 && mine->p >= 0; e++) {
        const double2 x = shared[e * count + (int)threadIdx.x];
        mine->at[e / 2][e % 2] = {x.x, x.y};
    }
}

/* The block's sum, in the same order each time. */
static __device__ double block_sum(double x) {
    __shared__ double warps[32];
    for (int step = 16; step > 0; step /= 2) {
        x += __shfl_xor_sync(0xFFFFFFFFu, x, step);
    }
    __syncthreads();
    if (threadIdx.x % 32 == 0) {
        warps[threadIdx.x / 32] = x;
    }
    __syncthreads();
    double sum = 0.0;
    for (int warp = 0; warp < (int)blockDim.x / 32; warp++) {
        sum += warps[warp];
    }
    return sum;
}

/* Whether the off-diagonal part is below rounding. */
static __device__ bool is_diagonal(const entries &mine) {
    double diagonal = 0.0, off = 0.0;
    if (mine.p >= 0 && mine.p == mine.q) {
        diagonal = mine.at[0][0].re * mine.at[0][0].re + mine.at[1][1].re * mine.at[1][1].re;
        off = 2.0 * abs2(mine.at[1][0]);
    } else if (mine.p >= 0) {
        for (int e = 0; e < 4; e++) {
            off += 2.0 * abs2(mine.at[e / 2][e % 2]);
        }
    }
    off = block_sum(off);
    return off <= DBL_EPSILON * DBL_EPSILON * (off + block_sum(diagonal));
}

/* values (n), descending, times `scale`, and the ranks of the indices. */
static __device__ void rank_values(int n, const entries &mine, double scale, double *found,
                                   double *values, jacobi_log *log) {
    __syncthreads();
    if (mine.p >= 0 && mine.p == mine.q) {
        found[2 * mine.p] = mine.at[0][0].re;
        found[2 * mine.p + 1] = mine.at[1][1].re;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        int rank = 0;
        for (int j = 0; j < n; j++) {
            rank += found[j] > found[i] || (found[j] == found[i] && j < i) ? 1 : 0;
        }
        log->rank[i] = rank;
        values[rank] = found[i] * scale;
    }
}

/* One block, a thread for each P >= Q. */
template <class E>
static __global__ void __launch_bounds__(THREADS)
    diagonalize(int n, const E *a, cuda_verdict *verdict, jacobi_log *log, double *values) {
    extern __shared__ double2 shared[]; /* entries between rounds, then the eigenvalues */
    __shared__ double2 turns[CUDA_JACOBI_MAX_N / 2]; /* z */
    __shared__ double cosines[CUDA_JACOBI_MAX_N / 2];
    const int pairs = (n + 1) / 2, count = pairs * (pairs + 1) / 2;
    const int exponent = scale_exponent(verdict->most);
    entries mine;
    load_entries(n, a, scalbn(0.5, -exponent), pairs, &mine);
    int round = 0;
    bool done = !is_finite_bits(verdict->most) || is_diagonal(mine);
    for (int sweep = 0; sweep < SWEEPS && !done; sweep++) {
        for (int i = 0; i < 2 * pairs - 1; i++, round++) {
            if (mine.p >= 0 && mine.p == mine.q) {
                const rotation turn = annihilate(&mine);
                turns[mine.p] = make_double2(turn.z.re, turn.z.im);
                cosines[mine.p] = turn.c;
                rotations_of(log)[round * pairs + mine.p] = turn;
            }
            __syncthreads();
            if (mine.p > mine.q) {
                const double2 rows = turns[mine.p], columns = turns[mine.q];
                rotate({cosines[mine.p], {rows.x, rows.y}},
                       {cosines[mine.q], {columns.x, columns.y}}, &mine);
            }
            send(mine, pairs, count, shared);
            __syncthreads();
            receive(&mine, count, shared);
        }
        done = is_diagonal(mine);
    }
    rank_values(n, mine, scalbn(1.0, exponent), reinterpret_cast<double *>(shared), values, log);
    if (threadIdx.x == 0) {
        log->rounds = round;
        verdict->info[0] = done ? 0 : 1;
    }
}

/* ---- rotating the identity ---- */

/* A block handles ROWS rows, a thread one pair of a row. */
template <class E>
static __global__ void __launch_bounds__(ROWS *CUDA_JACOBI_MAX_N / 2)
    accumulate(int n, jacobi_log *log, E *vectors) {
    constexpr int most = CUDA_JACOBI_MAX_N / 2; /* pairs */
    __shared__ double2 places[2][ROWS][2 * most];
    __shared__ rotation turns[STAGE * most];
    const int pairs = (n + 1) / 2, p = threadIdx.x % pairs, r = threadIdx.x / pairs;
    const int row = blockIdx.x * ROWS + r, rounds = log->rounds;
    pair<double> x = {row == 2 * p ? 1.0 : 0.0, 0.0}, y = {row == 2 * p + 1 ? 1.0 : 0.0, 0.0};
    const int to_x = moved(2 * p, pairs), to_y = moved(2 * p + 1, pairs);
    for (int first = 0; first < rounds; first += STAGE) {
        const int now = rounds - first < STAGE ? rounds - first : STAGE;
        __syncthreads();
        for (int i = threadIdx.x; i < now * pairs; i += blockDim.x) {
            turns[i] = rotations_of(log)[first * pairs + i];
        }
        __syncthreads();
        for (int i = 0; i < now; i++) {
            double2 *next = places[i % 2][r];
            turn_columns(turns[i * pairs + p], &x, &y);
            next[to_x] = make_double2(x.re, x.im);
            next[to_y] = make_double2(y.re, y.im);
            __syncthreads(); /* the other set of places is read until the next one */
            x = {next[2 * p].x, next[2 * p].y};
            y = {next[2 * p + 1].x, next[2 * p + 1].y};
        }
    }
    if (row < n) {
        store_pair(&vectors[row * n + log->rank[2 * p]], x);
        if (2 * p + 1 < n) {
            store_pair(&vectors[row * n + log->rank[2 * p + 1]], y);
        }
    }
}

/* ---- launches ---- */

template <class E>
static tg_status jacobi_of(tg_backend *be, int n, const E *a, jacobi_log *log, E *vectors,
                           double *values, cuda_verdict *verdict) {
    const int pairs = (n + 1) / 2, count = pairs * (pairs + 1) / 2;
    const size_t bytes = 4 * (size_t)count * sizeof(double2);
    const char *what = "computing eigenvectors";
    TG_CALL(launch_alone(be, what, diagonalize<E>, 1, (count + 31) / 32 * 32, bytes, n, a, verdict,
                         log, values));
    return launch_alone(be, what, accumulate<E>, (n + ROWS - 1) / ROWS, ROWS * pairs, 0, n, log,
                        vectors);
}

tg_status cuda_jacobi(tg_backend *be, tg_dtype dtype, int64_t n, const void *a, void *log,
                      void *vectors, double *values, cuda_verdict *verdict) {
    jacobi_log *turns = static_cast<jacobi_log *>(log);
    return dtype == TG_C128 ? jacobi_of(be, (int)n, static_cast<const pair<double> *>(a), turns,
                                        static_cast<pair<double> *>(vectors), values, verdict)
                            : jacobi_of(be, (int)n, static_cast<const double *>(a), turns,
                                        static_cast<double *>(vectors), values, verdict);
}
