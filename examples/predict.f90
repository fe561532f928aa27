! Inference from a checkpoint or model file, in the units of the data: predict MODEL X.npy Y.npy
! X holds fields (samples, channels, grid..), f32 or for complex data c64. Sizes in Fortran's order
! are (grid.., channels, samples).
program predict
    use, intrinsic :: iso_c_binding, only: c_int, c_int64_t, c_null_ptr, c_ptr
    use, intrinsic :: iso_fortran_env, only: error_unit
    use tgrad
    implicit none
    type(c_ptr) :: ctx = c_null_ptr, model = c_null_ptr
    type(tg_tensor) :: x, y
    integer(c_int64_t), allocatable :: sizes(:)
    character(1024) :: path(3)
    integer :: i

    if (command_argument_count() /= 3) error stop "usage: predict MODEL X.npy Y.npy"
    do i = 1, 3
        call get_command_argument(i, path(i))
    end do
    call need(tg_context_create(ctx)) ! computes on a GPU if there is one
    call need(tg_model_load(ctx, path(1), model))
    call need(tg_npy_read(ctx, path(2), x))
    sizes = tg_tensor_sizes(x)
    sizes(size(sizes) - 1) = tg_model_out_channels(model)
    call need(tg_tensor_create(ctx, x%dtype, sizes, y))
    call need(tg_model_predict(model, x, y))
    call need(tg_npy_write(ctx, path(3), y))
    call tg_tensor_destroy(y)
    call tg_tensor_destroy(x)
    call tg_model_destroy(model)
    call tg_context_destroy(ctx)
contains
    subroutine need(status) ! library calls can fail; the context has the error
        integer(c_int), intent(in) :: status
        if (status == TG_OK) return
        write (error_unit, "(a)") tg_context_error(ctx)
        error stop
    end subroutine need
end program predict
