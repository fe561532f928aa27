/* Configurations of the published programs: what they say by default is read, what is not done here
 * is refused with the place and with what to use instead, never dropped. */
#include <stdio.h>
#include <string.h>

#include "io/settings.h"
#include "support/cmocka.h"
#include "train/config.h"

static tg_context *ctx;
static char notes[1024];

static void on_log(void *user, tg_log_level level, const char *message) {
    (void)user;
    (void)level;
    snprintf(notes, sizeof notes, "%s", message);
}

static int setup(void **state) {
    (void)state;
    const tg_context_config config = {
        .size = sizeof(tg_context_config), .device = -1, .log = on_log};
    return tg_context_create(&config, &ctx) == TG_OK ? 0 : -1;
}

static int teardown(void **state) {
    (void)state;
    assert_int_equal(tg_context_memory(ctx, TG_HOST).blocks, 1);
    tg_context_destroy(&ctx);
    return 0;
}

static tg_status read(const char *text, tg_run_config *out) {
    tg_settings *settings = NULL;
    notes[0] = '\0';
    assert_int_equal(tg_settings_parse_yaml(ctx, "t.yaml", text, strlen(text), &settings), TG_OK);
    tg_status status = tg_run_config_read(ctx, settings, 1, true, out);
    tg_settings_destroy(&settings);
    return status;
}

#define BASE "fno.n_modes: [8, 8]\ndata.set: darcy\ndata.train_resolution: 16\n"

/* The defaults of the TensorGRaD program for Navier-Stokes, key for key. */
static const char published[] =
    "n_params_baseline: None\n"
    "verbose: True\n"
    "arch: 'fno'\n"
    "distributed: {use_distributed: False, wireup_info: 'mpi', wireup_store: 'tcp',\n"
    "  model_parallel_size: 2, seed: 666}\n"
    "fno:\n"
    "  {data_channels: 1, out_channels: 1, n_modes: [64,64], hidden_channels: 64,\n"
    "  projection_channel_ratio: 4, n_layers: 4, domain_padding: None,\n"
    "  domain_padding_mode: 'one-sided', fft_norm: 'forward', norm: None, skip: 'linear',\n"
    "  implementation: 'reconstructed', positional_embedding: 'grid', use_channel_mlp: 1,\n"
    "  channel_mlp_expansion: 0.5, channel_mlp_dropout: 0, separable: False,\n"
    "  factorization: None, rank: 1.0, fixed_rank_modes: None, dropout: 0.0,\n"
    "  tensor_lasso_penalty: 0.0, joint_factorization: False, fno_block_precision: 'full',\n"
    "  fno_block_weights_precision: 'full', stabilizer: None, no_skips: False,\n"
    "  activation_checkpoint: False}\n"
    "opt:\n"
    "  {n_epochs: 500, checkpointing: False, profiling: False, max_batches: None,\n"
    "  resume_from_dir: './ckpts', save_dir: './ckpts', save_every: 10, learning_rate: 3e-4,\n"
    "  training_loss: 'h1', weight_decay: 1e-4, amp_autocast: False,\n"
    "  enforce_full_complex_precision: True, tensorgrad_sum_lambda_sparse: 1.0,\n"
    "  scheduler_T_max: 500, scheduler_patience: 50, scheduler: 'StepLR', step_size: 100,\n"
    "  gamma: 0.5, tucker_warm_restart: True, per_layer_opt: False,\n"
    "  activation_checkpoint: False, naive_galore: False, first_dim_rollup: 1,\n"
    "  adamw_support_complex: True, update_proj_gap: 100, update_proj_gap_end: 100,\n"
    "  update_proj_gap_mode: 'fixed', tensorgrad: True, svd_type: 'truncated_svd',\n"
    "  n_iter_max_tucker: 1, optimizer_type: 'adamw', galore_2d_proj_type: left,\n"
    "  proj_type: 'low_rank', rank: [1.0], sparse_ratio: [0.5], sparse_type: 'randk',\n"
    "  scale: 1.0, scale_by_mask_ratio: False, second_proj_type: 'unstructured_sparse',\n"
    "  second_sparse_ratio: [0.05], second_sparse_type: 'randk', second_scale: 1.0,\n"
    "  second_rank: [1.0], second_scale_by_mask_ratio: False,\n"
    "  reset_sparse_optimizer_states: False}\n"
    "data:\n"
    "  {root: data/navier_stokes, set: ns, batch_size: 8, n_train: 10000, train_resolution: 128,\n"
    "  n_tests: [2000], test_resolutions: [128], test_batch_sizes: [2], encode_input: True,\n"
    "  max_chunk_data_fitting: 4000, num_workers: 8, encode_output: True, download: True}\n"
    "patching: {levels: 0, padding: 0, stitching: False}\n"
    "wandb: {log: True, name: '', project: 'tensorgrad', log_ranks_interval: -1}\n";

TEST(test_defaults_are_read) {
    tg_run_config config;
    if (read(published, &config) != TG_OK) {
        fail_msg("%s", tg_context_error(ctx));
    }
    assert_non_null(strstr(notes, "settings that change nothing here: n_params_baseline, verbose"));
    assert_int_equal(config.distributed.seed, 666);
    assert_true(config.opt.projector.first.sparse_ratio == 0.5);
    assert_true(config.opt.projector.first.rank.value[0] > 1000.0); /* 1.0: everything */
}

/* What would train something else: key, value, what the sentence must say. */
TEST(test_others_are_refused) {
    static const char *const rows[][3] = {
        {"fno.fft_norm", "backward", "only forward"},
        {"fno.no_skips", "yes", "fno.fno_skip"},
        {"fno.projection_channels", "256", "fno.projection_channel_ratio"},
        {"fno.n_modes_height", "16", "an entry of fno.n_modes"},
        {"fno.joint_factorization", "True", "dense"},
        {"opt.mixed_precision", "True", "fno.activation_precision: bf16"},
        {"opt.amp_autocast", "true", "fno.activation_precision: bf16"},
        {"opt.max_batches", "10", "data.n_train"},
        {"opt.activation_checkpoint", "true", "it is called fno.activation_checkpoint here"},
        {"opt.checkpointing", "true", "fno.activation_checkpoint"},
        {"opt.lr", "1e-3", "it is called opt.learning_rate here"},
        {"opt.reset_sparse_optimizer_states", "true", "opt.moments_on_refresh: reset"},
        {"opt.adamw_support_complex", "false", "opt.complex_adam: split"},
        {"opt.resume_from_dir", "runs/a", "--resume"},
        {"opt.save_dir", "out", "--run DIR"},
        {"data.positional_encoding", "false", "fno.positional_embedding: null"},
        {"patching.levels", "1", "whole grid"},
        {"distributed.use_distributed", "true", "one process"},
        {"fno.max_n_modes", "[8, 8]", "fno.incremental_n_modes"},
        {"arch", "gino", "Fourier neural operator"},
        {"default.fno.n_layers", "2", "one level up"},
        {"hidden", "2", "unknown key"},
        {"fno.in_chanels", "2", "did you mean fno.in_channels?"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char text[256];
        tg_run_config config;
        snprintf(text, sizeof text, BASE "%s: %s\n", rows[i][0], rows[i][1]);
        assert_int_equal(read(text, &config), TG_E_CONFIG);
        const char *error = tg_context_error(ctx);
        if (!strstr(error, rows[i][2]) || strncmp(error, "t.yaml:4: ", 10) != 0) {
            fail_msg("%s: no '%s' in '%s'", rows[i][0], rows[i][2], error);
        }
    }
}

/* Other names of what is there: used, and refused where the two disagree. */
TEST(test_other_names) {
    tg_run_config config;
    assert_int_equal(
        read(BASE "fno.data_channels: 3\nfno.skip: identity\ndata.folder: d\n", &config), TG_OK);
    assert_int_equal(config.fno.in_channels, 3);
    assert_int_equal(config.fno.fno_skip, TG_SKIP_IDENTITY);
    assert_string_equal(config.data.root, "d");
    assert_int_equal(read(BASE "opt.lambda_sparse: 0.5\n", &config), TG_OK);
    assert_true(config.opt.projector.lambda_sparse == 0.5);
    assert_int_equal(read(BASE "fno.data_channels: 3\nfno.in_channels: 3\n", &config), TG_OK);
    assert_int_equal(read(BASE "fno.data_channels: 3\nfno.in_channels: 2\n", &config), TG_E_CONFIG);
    assert_non_null(strstr(tg_context_error(ctx), "is called fno.in_channels here, and both are"));
}

/* 1.0 is a fraction, 1 a rank. */
TEST(test_rank_of_one) {
    tg_run_config config;
    assert_int_equal(read(BASE "opt.rank: 1\n", &config), TG_OK);
    assert_true(config.opt.projector.first.rank.value[0] == 1.0);
    assert_int_equal(read(BASE "opt.rank: 1.0\n", &config), TG_OK);
    assert_true(config.opt.projector.first.rank.value[0] > 1000.0);
}

int main(void) {
    return t_run_tests(setup, teardown);
}
