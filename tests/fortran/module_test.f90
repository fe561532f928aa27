! The Fortran module: layouts and numbers against the C compiler's, arrays of Fortran as tensors,
! texts of any length, models, an optimizer, and failures.
program module_test
    use, intrinsic :: iso_c_binding
    use, intrinsic :: iso_fortran_env, only: error_unit
    use tgrad
    implicit none

    interface
        integer(c_int) function tg_test_facts(facts) bind(c)
            import :: c_int, c_long_long
            integer(c_long_long), intent(out) :: facts(*)
        end function tg_test_facts
        integer(c_int) function tg_test_data_bytes(ctx) bind(c)
            import :: c_int, c_ptr
            type(c_ptr), value :: ctx
        end function tg_test_data_bytes
    end interface

    integer :: failures = 0
    call test_layouts()
    call test_tensors()
    call test_texts()
    call test_models()
    call test_optimizer()
    if (failures > 0) error stop 1
    print "(a)", "0 failures"

contains

    subroutine check(is_good, what)
        logical, intent(in) :: is_good
        character(*), intent(in) :: what
        if (is_good) return
        failures = failures + 1
        write (error_unit, "(2a)") "FAILED: ", what
    end subroutine check

    ! Bytes from one address to another.
    integer(c_long_long) function apart(from, to)
        type(c_ptr), intent(in) :: from, to
        apart = transfer(to, 0_c_intptr_t) - transfer(from, 0_c_intptr_t)
    end function apart

    subroutine test_layouts()
        type(tg_tensor), target :: t
        type(tg_shape), target :: s
        type(tg_optim_param), target :: p
        type(tg_optim_setup), target :: o
        type(tg_optim_config), target :: config
        integer(c_long_long) :: wanted(64), found(38)
        type(c_ptr) :: begin
        character(8) :: number
        integer :: i
        begin = c_loc(t)
        found(1:3) = [int(TG_MAX_NDIM, c_long_long), int(c_sizeof(s), c_long_long), &
            apart(c_loc(s), c_loc(s%dim))]
        found(4:9) = [int(c_sizeof(t), c_long_long), apart(begin, c_loc(t%dtype)), &
            apart(begin, c_loc(t%shape)), apart(begin, c_loc(t%data)), &
            apart(begin, c_loc(t%place)), apart(begin, c_loc(t%owner))]
        found(10:20) = [TG_OK, TG_E_ARGUMENT, TG_E_SHAPE, TG_E_DTYPE, TG_E_MEMORY, TG_E_IO, &
            TG_E_FORMAT, TG_E_CONFIG, TG_E_NUMERIC, TG_E_UNSUPPORTED, TG_E_BACKEND]
        found(21:26) = [TG_F32, TG_F64, TG_C64, TG_C128, TG_HOST, TG_DEVICE]
        begin = c_loc(p)
        found(27:30) = [int(c_sizeof(p), c_long_long), apart(begin, c_loc(p%dtype)), &
            apart(begin, c_loc(p%shape)), apart(begin, c_loc(p%group))]
        begin = c_loc(o)
        found(31:37) = [apart(begin, c_loc(o%groups)), apart(begin, c_loc(o%group_count)), &
            apart(begin, c_loc(o%params)), apart(begin, c_loc(o%param_count)), &
            apart(begin, c_loc(o%seed)), apart(begin, c_loc(o%takes_factored)), &
            apart(begin, c_loc(o%shares_workspace))]
        found(38) = apart(c_loc(config), c_loc(config%size))
        call check(tg_test_facts(wanted) == size(found), "the number of facts")
        do i = 1, size(found)
            write (number, "(i0)") i
            call check(found(i) == wanted(i), "fact "//number)
        end do
    end subroutine test_layouts

    ! (nx, ny, channels, samples) here is (samples, channels, ny, nx) there, in the same memory.
    subroutine test_tensors()
        type(c_ptr) :: ctx
        type(tg_tensor) :: view, made
        real(c_float), target :: field(3, 4, 2, 5)
        real(c_double), pointer :: values(:, :)
        call check(tg_context_create(ctx) == TG_OK, "a context")
        call check(tg_backend_select(ctx, "cpu  ") == TG_OK, "the backend cpu")
        call check(tg_backend_name(ctx) == "cpu", "its name")
        call check(tg_tensor_wrap(ctx, TG_F32, shape(field), c_loc(field), view) == TG_OK, "wrap")
        call check(view%shape%ndim == 4 .and. all(view%shape%dim(:4) == [5, 2, 4, 3]), "its shape")
        call check(all(tg_tensor_sizes(view) == shape(field)), "its sizes")
        call check(c_associated(view%data, c_loc(field)) .and. view%place == TG_HOST, "its memory")
        call check(.not. c_associated(view%owner), "its owner")
        call check(tg_tensor_create(ctx, TG_F64, [7, 2], made) == TG_OK, "create")
        call check(tg_test_data_bytes(ctx) == 7 * 2 * 8, "its category is data")
        call c_f_pointer(made%data, values, tg_tensor_sizes(made))
        call check(all(shape(values) == [7, 2]), "sizes for c_f_pointer")
        call check(tg_tensor_create(ctx, TG_F32, [1, 1, 1, 1, 1, 1, 1, 1, 1], view) == TG_E_SHAPE, &
            "nine dimensions")
        call tg_tensor_destroy(made)
        call check(tg_test_data_bytes(ctx) == 0, "destroy")
        call tg_context_destroy(ctx)
        call check(.not. c_associated(ctx), "destroy clears the handle")
    end subroutine test_tensors

    subroutine test_texts()
        type(c_ptr) :: ctx
        type(tg_tensor) :: tensor
        call check(tg_status_name(TG_E_MEMORY) == "out of memory", "the name of a status")
        call check(tg_context_create(ctx) == TG_OK, "a context")
        call check(len(tg_context_error(ctx)) == 0, "no error yet")
        call check(tg_npy_read(ctx, "no such file.npy ", tensor) == TG_E_IO, "no such file")
        call check(index(tg_context_error(ctx), "no such file.npy: ") == 1, tg_context_error(ctx))
        call check(len(tg_context_error(c_null_ptr)) == 0, "the error of no context")
        call tg_context_destroy(ctx)
    end subroutine test_texts

    ! The model of the first argument: predicted for an array of this program, saved and loaded.
    subroutine test_models()
        type(c_ptr) :: ctx, model, again
        type(tg_tensor) :: x, y
        real(c_float), target :: field(12, 10, 1, 3), first(12, 10, 1, 3), second(12, 10, 1, 3)
        character(1024) :: path
        integer :: i
        call get_command_argument(1, path)
        call check(tg_context_create(ctx) == TG_OK, "a context")
        call check(tg_model_load(ctx, "none", model) == TG_E_IO, "a model that is not there")
        call check(.not. c_associated(model), "no handle of it")
        call check(tg_model_out_channels(model) == 0, "channels of no model")
        call check(tg_model_load(ctx, path, model) == TG_OK, "load: "//tg_context_error(ctx))
        call check(tg_model_setting(model, "fno.n_modes") == "[12, 12]", "a setting")
        call check(tg_model_setting(model, "fno.no_such_key") == "", "a setting that is not there")
        call check(tg_model_in_channels(model) == 1, "channels of the input")
        call check(tg_model_out_channels(model) == 1, "channels of the output")
        field = reshape([(sin(0.1 * i), i=1, size(field))], shape(field))
        first = -1.0
        call check(tg_tensor_wrap(ctx, TG_F32, shape(field), c_loc(field), x) == TG_OK, "x")
        call check(tg_tensor_wrap(ctx, TG_F32, shape(first), c_loc(first), y) == TG_OK, "y")
        call check(tg_model_predict(model, x, y) == TG_OK, "predict: "//tg_context_error(ctx))
        call check(any(abs(first + 1.0) > 0.1), "predicted values")
        call check(tg_model_save(model, trim(path)//".copy") == TG_OK, "save")
        call check(tg_model_load(ctx, trim(path)//".copy", again) == TG_OK, "load the copy")
        call check(tg_tensor_wrap(ctx, TG_F32, shape(second), c_loc(second), y) == TG_OK, "y")
        call check(tg_model_predict(again, x, y) == TG_OK, "predict with the copy")
        call check(all(transfer(first, [0_c_int32_t]) == transfer(second, [0_c_int32_t])), &
            "the same bits")
        y%shape%dim(2) = 2
        call check(tg_model_predict(model, x, y) == TG_E_SHAPE, "two output channels")
        call tg_model_destroy(again)
        call tg_model_destroy(model)
        call tg_context_destroy(ctx)
    end subroutine test_models

    ! |w - goal|^2 of a complex array of low rank falls under TensorGRaD.
    subroutine test_optimizer()
        type(c_ptr) :: ctx, optim
        type(tg_optim_config) :: config
        type(tg_tensor) :: weight, gradient
        complex(c_float_complex), target, save :: w(7, 12, 10, 12), g(7, 12, 10, 12)
        complex(c_float_complex), save :: goal(7, 12, 10, 12)
        real :: first
        integer :: i, j, k, l
        do concurrent (i=1:7, j=1:12, k=1:10, l=1:12)
            goal(i, j, k, l) = &
                cmplx(cos(0.3 * l + 0.2 * k) * sin(0.5 * j), sin(0.4 * k) * cos(0.7 * i))
        end do
        w = 0
        first = sum(abs(goal)**2)
        call check(tg_context_create(ctx) == TG_OK, "a context")
        call check(tg_backend_select(ctx, "cpu") == TG_OK, "the backend cpu")
        config = tg_optim_config_default()
        call check(config%size == c_sizeof(config), "the size of the settings")
        call check(tg_optim_config_set(ctx, config, "name", "tensorgrad") == TG_OK, "a method")
        call check(tg_optim_config_set(ctx, config, "update_proj_gap", "20") == TG_OK, "a gap")
        call check(tg_optim_config_set(ctx, config, "learning_rat", "1") == TG_E_CONFIG, "a key")
        call check(index(tg_context_error(ctx), "learning_rate") > 0, tg_context_error(ctx))
        call check(tg_optim_create(ctx, config, TG_C64, shape(w), optim) == TG_OK, &
            "an optimizer: "//tg_context_error(ctx))
        call check(tg_optim_set_learning_rate(optim, 0.3_c_double) == TG_OK, "its rate")
        call check(tg_tensor_wrap(ctx, TG_C64, shape(w), c_loc(w), weight) == TG_OK, "w")
        call check(tg_tensor_wrap(ctx, TG_C64, shape(g), c_loc(g), gradient) == TG_OK, "g")
        do i = 1, 150
            g = 2 * (w - goal)
            call check(tg_optim_step(optim, gradient, weight) == TG_OK, "a step")
        end do
        call check(sum(abs(w - goal)**2) < 0.1 * first, "the loss falls")
        gradient%shape%dim(4) = 6
        call check(tg_optim_step(optim, gradient, weight) == TG_E_SHAPE, "another shape")
        call tg_optim_destroy(optim)
        config%size = 0
        call check(tg_optim_create(ctx, config, TG_C64, shape(w), optim) == TG_E_ARGUMENT, &
            "no size")
        call check(.not. c_associated(optim), "no handle")
        call tg_context_destroy(ctx)
    end subroutine test_optimizer
end program module_test
