/* Channel MLPs on tensor cores, forward: one kernel that reads x and add and writes y and
 * activated, y = beta y + alpha (w2 gelu(w1 act(x) + b1) + b2) + gate add,  activated = gelu(y). */
#include "backend/cuda/nn/mlp_tile.cuh"

template <class S, int X, int Y>
static __global__ void __launch_bounds__(TENSOR_THREADS, 2) mlp_forward(mlp_task t) {
    using F = typename S::F;
    using P = warp_tile<F, S::CHUNK, TILE>;
    using R = mlp_result<S>;
    using number = typename F::number;
    pdl_wait_and_launch_dependents();
    assume_all<X, Y>(t);
    const int chunks = F::HALF ? 1 : t.chunks;
    shared_room room = dynamic_shared();
    forward_weights<S> weights, later;
    weights.template load<8>(room, t, 0, t.alpha);
    for (int c = 1; c < chunks; c++) {
        later.template load<8>(room, t, c, t.alpha);
    }
    number *u = room.take<number>(S::IN * F::LD);
    const bool overlaid = may_overlay<S> && chunks == 1; /* the hidden tile on u */
    number *h = overlaid ? u : u + S::IN * F::LD;
    tile_share<F, S::IN, TENSOR_THREADS> x;
    row_terms<R> terms;
    if (F::HALF) {
        terms.load(t);
    }
    x.fetch(t.x, t.tiles, place_of(t.tiles, blockIdx.x));
    for (int tile = blockIdx.x; tile < t.tiles.count; tile += gridDim.x) {
        const tile_place place = place_of(t.tiles, tile);
        prefetched<R> start;
        R y;
        if (F::HALF) { /* has enough registers; the barrier below comes after the use of u */
            fetch_start(t, start, y, place);
        } else {
            __syncthreads(); /* the previous tile's h, which may be u, is no longer read */
        }
        x.put(t.x.store, t.act, u);
        __syncthreads();
        if (tile + (int)gridDim.x < t.tiles.count) {
            x.fetch(t.x, t.tiles, place_of(t.tiles, tile + gridDim.x));
        }
        for (int c = 0; c < chunks; c++) {
            const forward_weights<S> w = weights.after(c);
            number *to = has_two_tiles<S> ? h + c % 2 * S::CHUNK * F::LD : h;
            P p;
            p.clear();
            add_product(p, w.w1, u);
            if (!F::HALF && c == 0) {
                fetch_start(t, start, y, place); /* loads overlap with the next lines */
            }
            if (may_overlay<S>) {
                __syncthreads(); /* u, or the previous h, is no longer read */
            }
            put_tile(p, to, [&](int m, int k, float v) { return gelu(v + w.b1[P::row(m, k)]); });
            if (c == 0) {
                if (!F::HALF) {
                    terms.load(t);
                }
                start_y(t, terms, start, y, place);
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

bool mlp_tile_supports(const tg_backend *be, const tg_mlp *op) {
    const bool is_full = op->x_store == TG_STORE_FULL && op->y_store == TG_STORE_FULL;
    return op->dtype == TG_F32 && (be->math == TG_MATH_TF32 || is_full) && op->dropout == 0.0 &&
           op->alpha != 0.0 && op->in <= 128 && op->out <= 128 && op->hidden >= 1 &&
           op->hidden <= 1024 && tiles_countable(op->batch, op->pixels);
}

bool mlp_is_half_call(const tg_backend *be, const tg_mlp *op) {
    using small_shape = mlp_shape<bf16, 64, 32, 64>;
    using large_shape = mlp_shape<bf16, 128, 64, 128>;
    const bool small = op->in <= 64 && op->out <= 64;
    if (op->x_store == TG_STORE_FULL || op->y_store != op->x_store || op->in <= 16 ||
        op->out <= 16 || op->hidden > (small ? 32 : 64)) {
        return false;
    }
    const mlp_task t = mlp_task_of(op, (int)op->hidden);
    const bool aligned = op->backward
                             ? has_octets(t.dy, op->pixels) && has_octets(t.dx, op->pixels)
                             : has_octets(t.y, op->pixels) && has_octets(t.add, op->pixels) &&
                                   has_octets(t.activated, op->pixels);
    const size_t shared = small ? (op->backward ? mlp_backward_shared<small_shape, true, true>(1)
                                                : mlp_forward_shared<small_shape>(1))
                                : (op->backward ? mlp_backward_shared<large_shape, true, true>(1)
                                                : mlp_forward_shared<large_shape>(1));
    return aligned && has_octets(t.x, op->pixels) && tensor_fits(be, shared);
}

bool mlp_tile_forward_supports(const tg_backend *be, const tg_mlp *op) {
    return mlp_tile_supports(be, op) && with_mlp_shape(be, op, [&](auto shape) {
               using S = decltype(shape);
               return tensor_fits(be, mlp_forward_shared<S>(mlp_chunks(op, S::CHUNK)));
           });
}

tg_status mlp_tile_forward(tg_backend *be, const tg_mlp *op) {
    return with_mlp_shape(be, op, [&](auto shape) {
        using S = decltype(shape);
        const mlp_task t = mlp_task_of(op, S::CHUNK);
        return with_known<S>(t, [&](auto of_x, auto of_y) {
            return launch_tiles(be, mlp_forward<S, decltype(of_x)::value, decltype(of_y)::value>,
                                mlp_forward_shared<S>(t.chunks), TENSOR_THREADS, t.tiles.count,
                                "an MLP", t);
        });
    });
}
