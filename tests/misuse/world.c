/* One of every object of the library. */
#include "misuse/world.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/files.h"
#include "support/sets.h"

enum { BUFFER = 1 << 20, SAMPLES = 4, POINTS = 8, BATCH = 2 };

misuse_world world;

static void name_files(void) {
    const char *path = test_path("");
    snprintf(world.folder, sizeof world.folder, "%s", path);
    world.folder[strlen(world.folder) - 1] = '\0'; /* the slash */
    const struct {
        char *path;
        const char *name;
    } files[] = {
        {world.archive_path, "archive.safetensors"},
        {world.npy_path, "x.npy"},
        {world.h5_path, "made_train_8.h5"},
        {world.yaml_path, "settings.yaml"},
        {world.new_run, "new_run"},
        {world.new_npy, "new.npy"},
        {world.new_archive, "new.safetensors"},
        {world.new_h5, "new.h5"},
        {world.new_yaml, "new.yaml"},
    };
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        snprintf(files[i].path, sizeof world.npy_path, "%s/%s", world.folder, files[i].name);
    }
}

static void make_data(void) {
    tg_context *ctx = world.ctx;
    world.shape = SET_SHAPE(SAMPLES, POINTS, POINTS);
    set_write(ctx, "made_train_8.h5", TG_F32, &world.shape, &world.shape);
    set_write(ctx, "made_test_8.h5", TG_F32, &world.shape, &world.shape);
    world.dataset_config = tg_dataset_config_default();
    set_ok(ctx, tg_dataset_open(ctx, world.h5_path, NULL, &world.dataset_config, &world.dataset));
    set_ok(ctx, tg_normalizer_fit(ctx, world.dataset, TG_DATA_X, &world.normalizer));
    const tg_loader_config loader = {.size = sizeof(tg_loader_config), .batch_size = BATCH};
    set_ok(ctx, tg_loader_create(ctx, world.dataset, &loader, &world.loader));
    set_ok(ctx, tg_h5_open(ctx, world.h5_path, &world.h5));

    world.shape = SET_SHAPE(BATCH, 1, POINTS, POINTS);
    set_ok(ctx, tg_tensor_create(ctx, TG_MEM_DATA, TG_F32, &world.shape, &world.x));
    set_ok(ctx, tg_dataset_read(world.dataset, (int64_t[]){0, 1}, BATCH, world.x.data, NULL));
    set_ok(ctx, tg_npy_write(ctx, world.npy_path, &world.x));
    set_ok(ctx, tg_archive_create(ctx, &world.archive));
    set_ok(ctx, tg_archive_add_view(world.archive, "x", &world.x));
    set_ok(ctx, tg_archive_set_meta(world.archive, "x", "1"));
    set_ok(ctx, tg_archive_write(ctx, world.archive_path, world.archive));
}

static tg_status drop(void *user, const tg_gradient *gradient) {
    (void)user;
    (void)gradient;
    return TG_OK;
}

/* The network as a function, in memory of the library. */
static void make_function(void) {
    tg_context *ctx = world.ctx;
    size_t activations = 0, workspace = 0;
    tg_fno_config config = world.network;
    config.input_gradient = true;
    set_ok(ctx, tg_function_create(ctx, &config, BATCH, world.grid, true, NULL, &world.function));
    set_ok(ctx, tg_function_sizes(world.function, &activations, &workspace));
    assert_true(activations + workspace <= BUFFER);
    for (int i = 0; i < tg_fno_param_count(world.fno); i++) {
        world.weights[i] = tg_fno_get_param(world.fno, i).weight.data;
    }
    world.call = (tg_function_call){.weights = world.weights,
                                    .gradients = world.gradients,
                                    .activations = world.buffer,
                                    .workspace = (char *)world.buffer + activations};
}

static void make_network(void) {
    tg_context *ctx = world.ctx;
    world.grid[0] = world.grid[1] = POINTS;
    world.network = tg_fno_config_default();
    set_ok(ctx, tg_fno_config_set(ctx, &world.network, "n_modes", "[4, 4]"));
    set_ok(ctx, tg_fno_config_set(ctx, &world.network, "hidden_channels", "4"));
    set_ok(ctx, tg_fno_config_set(ctx, &world.network, "n_layers", "1"));
    set_ok(ctx, tg_fno_create(ctx, &world.network, 1, &world.fno));
    set_ok(ctx, tg_fno_prepare(world.fno, BATCH, world.grid, true));

    world.group = tg_optim_config_default();
    world.setup = (tg_optim_setup){.size = sizeof(tg_optim_setup),
                                   .groups = &world.group,
                                   .group_count = 1,
                                   .params = world.params,
                                   .param_count = tg_fno_param_count(world.fno),
                                   .takes_factored = true,
                                   .accumulates = true};
    assert_in_range(world.setup.param_count, 1, 32);
    for (int i = 0; i < world.setup.param_count; i++) {
        const tg_fno_param p = tg_fno_get_param(world.fno, i);
        world.params[i] = (tg_optim_param){.name = p.name, .dtype = p.dtype, .shape = p.shape};
        if (p.spectral) {
            world.factored = (tg_gradient){.param = i,
                                           .dtype = p.gradient,
                                           .shape = p.shape,
                                           .x = world.buffer,
                                           .dy = world.buffer,
                                           .batch = BATCH};
            world.spectral_weight = p.weight;
        }
    }
    set_ok(ctx, tg_optim_create(ctx, &world.setup, &world.optim));
    for (int i = 0; i < world.setup.param_count; i++) {
        const tg_fno_param param = tg_fno_get_param(world.fno, i);
        set_ok(ctx, tg_optim_bind(world.optim, i, &param.weight));
    }
    make_function();
    world.loss_config = tg_loss_config_default();
    world.step_config = (tg_step_config){.size = sizeof(tg_step_config),
                                         .fno = world.fno,
                                         .optim = world.optim,
                                         .loss = world.loss_config};
    set_ok(ctx, tg_step_create(ctx, &world.step_config, &world.step));
    world.sink = (tg_grad_sink){.receive = drop};
    world.scale_config = tg_loss_scale_config_default();

    world.gradient =
        (tg_gradient){.dtype = TG_F32, .shape = SET_SHAPE(6, 5, 4), .dense = world.buffer};
    world.projector_config = tg_projector_config_default();
    set_ok(ctx, tg_projector_create(ctx, &world.projector_config, TG_F32, &world.gradient.shape, 1,
                                    &world.projector));
    for (int i = 0; i < 4; i++) {
        world.ranks[i] = 1;
    }
    const tg_shape small = {1, {tg_projector_count(world.projector)}};
    world.weight = tg_fno_get_param(world.fno, 0).weight;
    set_ok(ctx, tg_tensor_wrap(ctx, TG_F32, &world.gradient.shape, world.buffer, &world.whole));
    set_ok(ctx, tg_tensor_wrap(ctx, TG_F32, &small, world.buffer, &world.small));
    set_ok(ctx, tg_tensor_wrap(ctx, TG_F64, &(tg_shape){0}, world.buffer, &world.scalar));
    set_ok(ctx,
           tg_tensor_wrap_at(ctx, TG_DEVICE, TG_F32, &world.shape, world.buffer, &world.elsewhere));
    set_ok(ctx, tg_tensor_wrap(ctx, TG_I8, &(tg_shape){1, {7}}, world.buffer, &world.odd));
}

static void make_run(void) {
    static const char *const values[][2] = {
        {"fno.n_modes", "[4, 4]"}, {"fno.hidden_channels", "4"},   {"fno.n_layers", "1"},
        {"opt.n_epochs", "1"},     {"data.set", "made"},           {"data.train_resolution", "8"},
        {"data.batch_size", "2"},  {"data.test_resolutions", "8"},
    };
    tg_context *ctx = world.ctx;
    char folder[600];
    set_ok(ctx, tg_settings_create(ctx, &world.settings));
    set_ok(ctx, tg_settings_set(world.settings, "data.root", world.folder, NULL));
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        set_ok(ctx, tg_settings_set(world.settings, values[i][0], values[i][1], NULL));
    }
    set_ok(ctx, tg_settings_write_yaml(ctx, world.yaml_path, world.settings));
    snprintf(folder, sizeof folder, "%s/run", world.folder);
    tg_trainer *trainer = NULL;
    tg_train_end end;
    set_ok(ctx, tg_trainer_create(ctx, NULL, world.settings, folder, &trainer));
    set_ok(ctx, tg_trainer_start(trainer));
    set_ok(ctx, tg_trainer_run(trainer, NULL, &end));
    tg_trainer_destroy(&trainer);
    memcpy(world.checkpoint, end.checkpoint, sizeof world.checkpoint);
    set_ok(ctx, tg_trainer_create(ctx, NULL, world.settings, folder, &world.trainer));
    set_ok(ctx, tg_model_load(ctx, world.checkpoint, &world.model));
}

static void make_generator(void) {
    world.generator_config = tg_generator_config_default();
    world.generator_config.equation = "burgers";
    world.generator_config.folder = world.folder;
    world.generator_config.n_train = 1;
    world.generator_config.n_test = 0;
    world.generator_config.resolution = 32;
    set_ok(world.ctx, tg_generator_create(world.ctx, &world.generator_config, &world.generator));
}

static int reduce_nothing(void *user, tg_comm_op op, tg_dtype dtype, int64_t count, void *values) {
    (void)user;
    (void)values;
    return op == TG_COMM_SUM && dtype == TG_F32 && count > 0 ? 0 : 1;
}

static int send_nothing(void *user, int root, int64_t bytes, void *data) {
    (void)user;
    (void)data;
    return root == 0 && bytes > 0 ? 0 : 1;
}

static int meet_nobody(void *user) {
    (void)user;
    return 0;
}

static void make_communicator(void) {
    world.callbacks = (tg_comm_callbacks){.size = sizeof(tg_comm_callbacks),
                                          .ranks = 1,
                                          .all_reduce = reduce_nothing,
                                          .broadcast = send_nothing,
                                          .barrier = meet_nobody};
    set_ok(world.ctx, tg_comm_create_self(world.ctx, &world.comm));
}

void world_make(void) {
    const tg_context_config config = {.size = sizeof(tg_context_config),
                                      .device = -1,
                                      .threads = 1}; /* calls are made in forked children */
    assert_int_equal(tg_context_create(&config, &world.ctx), TG_OK);
    set_ok(world.ctx, tg_backend_select(world.ctx, "cpu"));
    world.buffer = aligned_alloc(64, BUFFER);
    assert_non_null(world.buffer);
    memset(world.buffer, 0, BUFFER);
    world.indices[1] = 1;
    name_files();
    make_data();
    make_network();
    make_run();
    make_generator();
    make_communicator();
}

void world_end(void) {
    tg_comm_destroy(&world.comm);
    tg_generator_destroy(&world.generator);
    tg_model_destroy(&world.model);
    tg_trainer_destroy(&world.trainer);
    tg_settings_destroy(&world.settings);
    tg_projector_destroy(&world.projector);
    tg_step_destroy(&world.step);
    tg_optim_destroy(&world.optim);
    tg_function_destroy(&world.function);
    tg_fno_destroy(&world.fno);
    tg_archive_destroy(&world.archive);
    tg_tensor_destroy(&world.x);
    tg_h5_close(&world.h5);
    tg_loader_destroy(&world.loader);
    tg_normalizer_destroy(&world.normalizer);
    tg_dataset_close(&world.dataset);
    tg_context_destroy(&world.ctx);
    free(world.buffer);
    test_folder_remove();
}
