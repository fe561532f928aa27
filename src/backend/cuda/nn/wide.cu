/* Channel MLPs and linear skips of any width: launches of the kernels of wide.cuh, whose products
 * are for f32 in TF32. The hidden layer of an MLP exists for as many tiles as fit the L2. */
#include "backend/cuda/nn/wide.cuh"

enum { HIDDEN_BYTES = 40 << 20 /* of a hidden layer, and backward its gradient */ };

/* ---- launches ---- */

/* The fragments of a warp for which least is computed in vain: 1 to 4 of a product, where columns
 * is 0, and 2 to 4 of a gradient. */
static int fragments_for(int64_t rows, int64_t columns) {
    int best = 0;
    int64_t least = INT64_MAX;
    for (int m = 4; m >= (columns == 0 ? 1 : 2); m--) {
        const int64_t side = 32 * m, down = (rows + side - 1) / side;
        const int64_t cost = columns == 0
                                 ? down * (side + 32)
                                 : down * ((columns + side - 1) / side) * (side + 32) * (side + 32);
        if (cost < least) {
            least = cost;
            best = m;
        }
    }
    return best;
}

template <int MT> using fragments = std::integral_constant<int, MT>;

template <class G> static tg_status with_fragments(int m, G f) {
    return m <= 2 ? f(fragments<2>()) : m == 3 ? f(fragments<3>()) : f(fragments<4>());
}

template <int KIND> static tg_status launch_product(tg_backend *be, const product_task &t) {
    const auto launch = [&](auto m) {
        constexpr int MT = decltype(m)::value;
        const int items = t.tiles.count * ((t.rows + 32 * MT - 1) / (32 * MT));
        return launch_tiles(be, channel_product<KIND, MT>, product_operands<KIND, MT>::BYTES,
                            THREADS, items, "a product of channels", t);
    };
    const int m = fragments_for(t.rows, 0);
    return m == 1 ? launch(fragments<1>()) : with_fragments(m, launch);
}

/* A gradient (rows, columns) with its parts in the workspace. */
struct gradient_room {
    int64_t rows, columns;
    int fragments, parts;

    size_t bytes() const { /* a multiple of 16 */
        return (size_t)parts * (size_t)(rows * padded(columns) * (int64_t)sizeof(float) +
                                        (rows + 1) / 2 * 2 * (int64_t)sizeof(double));
    }
    float *partial(char *room) const {
        return reinterpret_cast<float *>(room);
    }
    double *sums(char *room) const {
        return reinterpret_cast<double *>(room + (int64_t)parts * rows * padded(columns) *
                                                     (int64_t)sizeof(float));
    }
};

static int blocks_at_once(const tg_backend *be) {
    return cuda_state_of(be)->processors * TENSOR_BLOCKS;
}

static gradient_room gradient_room_of(const tg_backend *be, int64_t rows, int64_t columns,
                                      int tiles) {
    gradient_room g = {rows, columns, fragments_for(rows, columns), 1};
    const int64_t side = 32 * g.fragments;
    const int64_t parts =
        blocks_at_once(be) / ((rows + side - 1) / side * ((columns + side - 1) / side));
    g.parts = (int)(parts < 1 ? 1 : parts < tiles ? parts : tiles);
    return g;
}

/* Of the tiles of `t` at d and x. */
static tg_status add_gradient(tg_backend *be, const gradient_room &g, char *room,
                              const wide_tiles &t, const wide_array &d, const wide_array &x,
                              tg_act act) {
    const gradient_task task = {t,           (int)g.rows, (int)g.columns,  act,         d, x,
                                t.first > 0, g.parts,     g.partial(room), g.sums(room)};
    return with_fragments(g.fragments, [&](auto m) {
        constexpr int MT = decltype(m)::value;
        const int64_t side = 32 * MT;
        const dim3 grid((unsigned)((g.rows + side - 1) / side * ((g.columns + side - 1) / side)),
                        (unsigned)g.parts);
        const size_t bytes = gradient_operands<MT>::BYTES;
        int blocks = 0;
        TG_CALL(tensor_blocks(be, (const void *)weight_gradient<MT>, bytes, &blocks, THREADS));
        return CUDA_CHECK(be, launch_early(be, weight_gradient<MT>, grid, THREADS, bytes, task),
                          "a gradient of weights");
    });
}

/* dw += w_scale the gradient, db += b_scale the sums; either may be NULL. */
static tg_status fold_gradient(tg_backend *be, const gradient_room &g, char *room, double w_scale,
                               void *dw, double b_scale, void *db) {
    const int ld = padded(g.columns);
    const fold_jobs jobs = {
        {{g.partial(room), g.rows * ld, (int)g.rows, (int)g.columns, ld, false,
          static_cast<float *>(dw)},
         {g.sums(room), g.rows, 1, (int)g.rows, (int)g.rows, true, static_cast<float *>(db)}},
        2,
        g.parts,
        {w_scale, b_scale}};
    return fold_partials(be, jobs);
}

static wide_tiles all_tiles(int64_t batch, int64_t pixels) {
    const int64_t per_sample = (pixels + PIXELS - 1) / PIXELS;
    return {pixels, (int)per_sample, 0, (int)(batch * per_sample)};
}

static bool is_aligned(const void *data, int64_t ld) {
    return (uintptr_t)data % 16 == 0 && ld % 4 == 0;
}

static wide_array array_of(const void *data, int64_t channels, int64_t pixels) {
    return {static_cast<float *>(const_cast<void *>(data)), (int)channels, false,
            is_aligned(data, pixels)};
}

static wide_array workspace_of(void *data, int64_t channels) {
    return {static_cast<float *>(data), (int)channels, true, true};
}

/* w: (rows, depth), or its transpose. */
static product_task product_of(const wide_tiles &tiles, int64_t rows, int64_t depth, const void *w,
                               bool transposed, const wide_array &x, const wide_array &to) {
    product_task t = {};
    t.tiles = tiles;
    t.rows = (int)rows;
    t.depth = (int)depth;
    t.w = static_cast<const float *>(w);
    t.w_aligned = is_aligned(w, transposed ? rows : depth);
    t.x = x;
    t.to = to;
    t.alpha = 1.0f;
    return t;
}

/* Of an op with x and dx: dx = (beta dx + alpha w^T d) act'(x). */
template <class OP>
static tg_status input_gradient(tg_backend *be, const OP *op, const wide_tiles &tiles, int64_t rows,
                                double alpha, const void *w, const wide_array &d) {
    product_task t =
        product_of(tiles, op->in, rows, w, true, d, array_of(op->dx, op->in, op->pixels));
    t.alpha = (float)alpha;
    t.beta = (float)op->beta;
    if (op->through && op->act != TG_ACT_NONE) {
        t.act = op->act;
        t.add = static_cast<const float *>(op->x);
        t.to.aligned = t.to.aligned && is_aligned(op->x, op->pixels);
    }
    return launch_product<BACKWARD>(be, t);
}

static bool wide_fits(const tg_backend *be, tg_dtype dtype, int64_t batch, int64_t pixels) {
    return dtype == TG_F32 && be->math == TG_MATH_TF32 && tiles_countable(batch, pixels) &&
           tensor_fits(be, gradient_operands<4>::BYTES) &&
           tensor_fits(be, product_operands<OUTPUT, 4>::BYTES);
}

/* Whether to go before kernels that take channels in steps of 64: where these would compute much
 * in vain, on as many bytes that more launches do not matter. */
static bool outruns_tiles(int64_t batch, int64_t pixels, int64_t in, int64_t out) {
    const int64_t channels = in > out ? in : out;
    return batch * pixels * channels * (int64_t)sizeof(float) >= 32 << 20 &&
           ((channels > 32 && channels <= 56) || (channels > 64 && channels <= 112));
}

/* ---- linear skips ---- */

bool skip_wide_takes(const tg_backend *be, const tg_skip *op) {
    return op->kind == TG_SKIP_MAP_LINEAR && op->store == TG_STORE_FULL && op->in >= 1 &&
           op->alpha != 0.0 && wide_fits(be, op->dtype, op->batch, op->pixels) &&
           (outruns_tiles(op->batch, op->pixels, op->in, op->out) || !skip_tile_takes(be, op));
}

size_t skip_wide_workspace(const tg_backend *be, const tg_skip *op) {
    return skip_wide_takes(be, op)
               ? gradient_room_of(be, op->out, op->in, all_tiles(op->batch, op->pixels).count)
                     .bytes()
               : 0;
}

tg_status skip_wide_forward(tg_backend *be, const tg_skip *op) {
    product_task t =
        product_of(all_tiles(op->batch, op->pixels), op->out, op->in, op->weight, false,
                   array_of(op->x, op->in, op->pixels), array_of(op->y, op->out, op->pixels));
    t.act = op->act;
    t.bias = static_cast<const float *>(op->bias);
    t.alpha = (float)op->alpha;
    t.beta = (float)op->beta;
    t.bias_scale = 1.0f;
    return launch_product<OUTPUT>(be, t);
}

tg_status skip_wide_backward(tg_backend *be, const tg_skip *op) {
    const wide_tiles tiles = all_tiles(op->batch, op->pixels);
    const wide_array dy = array_of(op->dy, op->out, op->pixels);
    if (op->dweight || op->dbias) {
        gradient_room g = gradient_room_of(be, op->out, op->in, tiles.count);
        char *room = static_cast<char *>(op->workspace);
        wide_array x = array_of(op->x, op->in, op->pixels);
        if (!op->dweight) { /* there may be no x: one unused column */
            g.columns = 1;
            x = dy;
        }
        TG_CALL(add_gradient(be, g, room, tiles, dy, x, op->act));
        TG_CALL(fold_gradient(be, g, room, op->alpha, op->dweight, 1.0, op->dbias));
    }
    return op->dx ? input_gradient(be, op, tiles, op->out, op->alpha, op->weight, dy) : TG_OK;
}

/* ---- channel MLPs ---- */

bool mlp_wide_takes(const tg_backend *be, const tg_mlp *op) {
    return op->x_store == TG_STORE_FULL && op->y_store == TG_STORE_FULL && op->dropout == 0.0 &&
           op->in >= 1 && op->hidden >= 1 && op->out > 1 && op->alpha != 0.0 &&
           wide_fits(be, op->dtype, op->batch, op->pixels) &&
           (outruns_tiles(op->batch, op->pixels, op->in, op->out) ||
            !(mlp_tile_forward_takes(be, op) && mlp_tile_backward_takes(be, op)));
}

struct mlp_rooms {
    wide_tiles tiles; /* of the first launch */
    gradient_room w1, w2;
    size_t layer; /* bytes of a hidden layer */
};

static mlp_rooms rooms_of(const tg_backend *be, const tg_mlp *op, bool backward) {
    const wide_tiles all = all_tiles(op->batch, op->pixels);
    const int64_t bytes = op->hidden * PIXELS * (int64_t)sizeof(float), slots = blocks_at_once(be);
    int64_t count = HIDDEN_BYTES / (bytes * (backward ? 2 : 1));
    count = count > slots ? count / slots * slots : count < 1 ? 1 : count;
    count = count < all.count ? count : all.count;
    mlp_rooms r = {{op->pixels, all.per_sample, 0, (int)count}, {}, {}, (size_t)(count * bytes)};
    r.w1 = gradient_room_of(be, op->hidden, op->in, r.tiles.count);
    r.w2 = gradient_room_of(be, op->out, op->hidden, r.tiles.count);
    return r;
}

/* Enough whether or not dx is wanted, which may decide whether other kernels take the call. */
size_t mlp_wide_workspace(const tg_backend *be, const tg_mlp *op, bool backward) {
    tg_mlp without = *op, with = *op;
    without.dx = NULL;
    with.dx = &with;
    if (!mlp_wide_takes(be, &without) && !mlp_wide_takes(be, &with)) {
        return 0;
    }
    const mlp_rooms r = rooms_of(be, op, backward);
    return backward ? 2 * r.layer + r.w1.bytes() + r.w2.bytes() : r.layer;
}

/* h = gelu(w1 act(x) + b1), and its slope if it is wanted. */
static tg_status hidden_of(tg_backend *be, const tg_mlp *op, const wide_tiles &tiles,
                           const wide_array &x, const wide_array &h, float *slope) {
    product_task t = product_of(tiles, op->hidden, op->in, op->w1, false, x, h);
    t.act = op->act;
    t.bias = static_cast<const float *>(op->b1);
    t.more = slope;
    return launch_product<HIDDEN>(be, t);
}

/* f(tiles) for as many as the hidden layer is there for at once. */
template <class G> static tg_status each_launch(const mlp_rooms &r, int all, G f) {
    wide_tiles t = r.tiles;
    for (; t.first < all; t.first += r.tiles.count) {
        t.count = all - t.first < r.tiles.count ? all - t.first : r.tiles.count;
        TG_CALL(f(t));
    }
    return TG_OK;
}

tg_status mlp_wide_forward(tg_backend *be, const tg_mlp *op) {
    const mlp_rooms rooms = rooms_of(be, op, false);
    const wide_array x = array_of(op->x, op->in, op->pixels);
    const wide_array h = workspace_of(op->workspace, op->hidden);
    return each_launch(rooms, all_tiles(op->batch, op->pixels).count, [&](const wide_tiles &tiles) {
        TG_CALL(hidden_of(be, op, tiles, x, h, NULL));
        product_task t = product_of(tiles, op->out, op->hidden, op->w2, false, h,
                                    array_of(op->y, op->out, op->pixels));
        t.bias = static_cast<const float *>(op->b2);
        t.gate = static_cast<const float *>(op->gate);
        t.add = static_cast<const float *>(op->add);
        t.more = static_cast<float *>(op->activated);
        t.alpha = t.bias_scale = (float)op->alpha;
        t.beta = (float)op->beta;
        t.to.aligned = t.to.aligned && (!t.add || is_aligned(t.add, op->pixels));
        return launch_product<OUTPUT>(be, t);
    });
}

tg_status mlp_wide_backward(tg_backend *be, const tg_mlp *op) {
    const mlp_rooms rooms = rooms_of(be, op, true);
    char *room1 = static_cast<char *>(op->workspace), *room2 = room1 + rooms.w1.bytes();
    char *layers = room2 + rooms.w2.bytes();
    const wide_array x = array_of(op->x, op->in, op->pixels);
    const wide_array dy = array_of(op->dy, op->out, op->pixels);
    const wide_array h = workspace_of(layers, op->hidden);
    const wide_array dh = workspace_of(layers + rooms.layer, op->hidden); /* slopes, before */
    const auto backward = [&](const wide_tiles &tiles) {
        TG_CALL(hidden_of(be, op, tiles, x, h, dh.data));
        TG_CALL(add_gradient(be, rooms.w2, room2, tiles, dy, h, TG_ACT_NONE));
        product_task t = product_of(tiles, op->hidden, op->out, op->w2, true, dy, dh);
        t.alpha = (float)op->alpha;
        t.add = dh.data;
        TG_CALL(launch_product<BACKWARD>(be, t));
        TG_CALL(add_gradient(be, rooms.w1, room1, tiles, dh, x, op->act));
        return op->dx ? input_gradient(be, op, tiles, op->hidden, 1.0, op->w1, dh) : TG_OK;
    };
    TG_CALL(each_launch(rooms, all_tiles(op->batch, op->pixels).count, backward));
    TG_CALL(fold_gradient(be, rooms.w1, room1, 1.0, op->dw1, 1.0, op->db1));
    return fold_gradient(be, rooms.w2, room2, op->alpha, op->dw2, op->alpha, op->db2);
}
