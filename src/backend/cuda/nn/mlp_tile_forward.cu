/* Channel MLPs on tensor cores, forward: one kernel that reads x and add and writes y and
 * activated, y = beta y + alpha (w2 gelu(w1 act(x) + b1) + b2) + gate add,  activated = gelu(y). */
#include "backend/cuda/nn/mlp_tile.cuh"

template <class S, int X, int Y>
static __global__ void __launch_bounds__(TENSOR_THREADS, 2) mlp_forward(mlp_task t) {
    using F = typename S::F;
    using P = warp_tile<F, S::CHUNK, TILE>;
    using R = mlp_result<S>;
    kernel_begins();
    assume_all<X, Y>(t);
    const int chunks = t.chunks;
    shared_room room = dynamic_shared();
    mlp_weights<S> weights, later;
    weights.load(room, t, 0, t.alpha);
    for (int c = 1; c < chunks; c++) {
        later.load(room, t, c, t.alpha);
    }
    float *u = room.take<float>(S::IN * TILE_LD);
    const bool overlaid = !has_two_tiles<S> && chunks == 1; /* the hidden tile on u */
    float *h = overlaid ? u : u + S::IN * TILE_LD;
    tile_share<F, S::IN, TENSOR_THREADS> x;
    row_terms<R> terms;
    x.fetch(t.x, t.tiles, place_of(t.tiles, blockIdx.x));
    for (int tile = blockIdx.x; tile < t.tiles.count; tile += gridDim.x) {
        const tile_place place = place_of(t.tiles, tile);
        R y;
        __syncthreads(); /* the tile before is done with h, which may be u */
        x.put(t.x.store, t.act, u);
        __syncthreads();
        if (tile + (int)gridDim.x < t.tiles.count) {
            x.fetch(t.x, t.tiles, place_of(t.tiles, tile + gridDim.x));
        }
        for (int c = 0; c < chunks; c++) {
            const mlp_weights<S> w = weights.after(c);
            float *to = has_two_tiles<S> ? h + c % 2 * S::CHUNK * TILE_LD : h;
            P p;
            p.clear();
            add_product(p, w.w1, u);
            if (c == 0) {
                fetch_start(t, y, place); /* arrives during the next lines */
            }
            if (!has_two_tiles<S>) {
                __syncthreads(); /* all are done with u, or with the h before */
            }
            put_tile(p, to, [&](int m, int k, float v) { return gelu(v + w.b1[P::row(m, k)]); });
            if (c == 0) {
                terms.load(t);
                start_y(t, terms, y, place);
            }
            __syncthreads();
            add_product(y, w.w2, to);
        }
        write_result(t, y, place);
    }
}

/* ---- host ---- */

mlp_task mlp_task_of(const tg_mlp *op, int chunk) {
    mlp_task t = {};
    t.tiles = pixel_tiles_of(op->batch, op->pixels);
    t.in = (int)op->in;
    t.hidden = (int)op->hidden;
    t.out = (int)op->out;
    t.chunks = mlp_chunks(op, chunk);
    t.act = op->act;
    t.through = op->through;
    t.w1 = static_cast<const float *>(op->w1);
    t.b1 = static_cast<const float *>(op->b1);
    t.w2 = static_cast<const float *>(op->w2);
    t.b2 = static_cast<const float *>(op->b2);
    t.gate = static_cast<const float *>(op->gate);
    t.alpha = (float)op->alpha;
    t.beta = (float)op->beta;
    t.x = activation_of(op->x, op->x_store, op->in, op->pixels);
    t.dx = activation_of(op->dx, op->x_store, op->in, op->pixels);
    t.y = activation_of(op->y, op->y_store, op->out, op->pixels);
    t.add = activation_of(op->add, op->y_store, op->out, op->pixels);
    t.activated = activation_of(op->activated, op->y_store, op->out, op->pixels);
    t.dy = activation_of(op->dy, op->y_store, op->out, op->pixels);
    return t;
}

bool mlp_tile_takes(const tg_backend *be, const tg_mlp *op) {
    const bool is_full = op->x_store == TG_STORE_FULL && op->y_store == TG_STORE_FULL;
    return op->dtype == TG_F32 && (be->math == TG_MATH_TF32 || is_full) && op->dropout == 0.0 &&
           op->alpha != 0.0 && op->in <= 128 && op->out <= 128 && op->hidden >= 1 &&
           op->hidden <= 1024 && tiles_countable(op->batch, op->pixels);
}

bool mlp_tile_forward_takes(const tg_backend *be, const tg_mlp *op) {
    return mlp_tile_takes(be, op) && with_mlp_shape(be, op, false, [&](auto shape) {
               using S = decltype(shape);
               return tensor_fits(be, mlp_forward_shared<S>(mlp_chunks(op, S::CHUNK)));
           });
}

tg_status mlp_tile_forward(tg_backend *be, const tg_mlp *op) {
    return with_mlp_shape(be, op, false, [&](auto shape) {
        using S = decltype(shape);
        const mlp_task t = mlp_task_of(op, S::CHUNK);
        return with_known<S>(t, [&](auto of_x, auto of_y) {
            return launch_tiles(be, mlp_forward<S, decltype(of_x)::value, decltype(of_y)::value>,
                                mlp_forward_shared<S>(t.chunks), TENSOR_THREADS, t.tiles.count,
                                "an MLP", t);
        });
    });
}
