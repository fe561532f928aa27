! Fortran interface of the library: contexts, tensors, npy files, trained models, and optimizers of
! arrays. Compile this file with yours and link with the C library:
!
!     gfortran tgrad.f90 solver.f90 $(pkg-config --libs tgrad)
!
! Names and meaning are those of the headers in include/tgrad. A call that can fail returns a status,
! TG_OK on success; tg_context_error returns the error. Handles are type(c_ptr): c_null_ptr at the
! start and after destroy. Texts are Fortran's, without trailing blanks.
!
! Order of dimensions: a Fortran array (nx, ny, channels, samples) has the memory layout of a C array
! (samples, channels, ny, nx). Sizes are in Fortran's order here, sizes(1) varying fastest, as in
! shape(array); tensors store them in C's.
module tgrad
    use, intrinsic :: iso_c_binding
    implicit none
    private

    integer, parameter, public :: TG_MAX_NDIM = 8

    enum, bind(c) ! tg_status
        enumerator :: TG_OK = 0, TG_E_ARGUMENT, TG_E_SHAPE, TG_E_DTYPE, TG_E_MEMORY, TG_E_IO, &
            TG_E_FORMAT, TG_E_CONFIG, TG_E_NUMERIC, TG_E_UNSUPPORTED, TG_E_BACKEND
    end enum
    public :: TG_OK, TG_E_ARGUMENT, TG_E_SHAPE, TG_E_DTYPE, TG_E_MEMORY, TG_E_IO, TG_E_FORMAT, &
        TG_E_CONFIG, TG_E_NUMERIC, TG_E_UNSUPPORTED, TG_E_BACKEND

    enum, bind(c) ! tg_dtype, as far as Fortran has such numbers
        enumerator :: TG_F32 = 0, TG_F64 = 1, TG_C64 = 4, TG_C128 = 5
    end enum
    public :: TG_F32, TG_F64, TG_C64, TG_C128

    enum, bind(c) ! tg_place
        enumerator :: TG_HOST = 0, TG_DEVICE
    end enum
    public :: TG_HOST, TG_DEVICE

    integer(c_int), parameter :: MEM_DATA = 7 ! tg_mem_category: what tensors made here count as

    type, bind(c), public :: tg_shape
        integer(c_int) :: ndim = 0
        integer(c_int64_t) :: dim(TG_MAX_NDIM) = 0 ! outermost first
    end type tg_shape

    type, bind(c), public :: tg_tensor
        integer(c_int) :: dtype = TG_F32
        type(tg_shape) :: shape
        type(c_ptr) :: data = c_null_ptr ! first element
        integer(c_int) :: place = TG_HOST
        type(c_ptr) :: owner = c_null_ptr ! set: destroy frees the data
    end type tg_tensor

    ! Settings of an optimizer: initialised by tg_optim_config_default, changed by tg_optim_config_set.
    ! A newer library uses defaults for additional settings.
    type, bind(c), public :: tg_optim_config
        integer(c_size_t) :: size = 0
        integer(c_int64_t) :: fields(52) = 0
    end type tg_optim_config

    ! The part that one array needs; public for the test of their layouts.
    type, bind(c), public :: tg_optim_param
        type(c_ptr) :: name = c_null_ptr
        integer(c_int) :: dtype = TG_F32
        type(tg_shape) :: shape
        integer(c_int) :: group = 0
    end type tg_optim_param

    type, bind(c), public :: tg_optim_setup
        integer(c_size_t) :: size = 0
        type(c_ptr) :: groups = c_null_ptr
        integer(c_int) :: group_count = 1
        type(c_ptr) :: params = c_null_ptr
        integer(c_int) :: param_count = 1
        integer(c_int64_t) :: seed = 0
        logical(c_bool) :: takes_factored = .false., accumulates = .false.
        logical(c_bool) :: forms_bf16 = .false., shares_workspace = .false.
    end type tg_optim_setup

    public :: tg_context_create, tg_context_destroy, tg_context_error, tg_status_name
    public :: tg_backend_select, tg_backend_name
    public :: tg_tensor_create, tg_tensor_wrap, tg_tensor_destroy, tg_tensor_sizes
    public :: tg_npy_read, tg_npy_write
    public :: tg_model_load, tg_model_save, tg_model_predict, tg_model_destroy
    public :: tg_model_setting, tg_model_in_channels, tg_model_out_channels
    public :: tg_optim_config_default, tg_optim_config_set
    public :: tg_optim_create, tg_optim_step, tg_optim_set_learning_rate, tg_optim_destroy

    ! Sizes are those of shape(array), or longer integers.
    interface tg_tensor_create
        module procedure create_default, create_long
    end interface tg_tensor_create
    interface tg_tensor_wrap
        module procedure wrap_default, wrap_long
    end interface tg_tensor_wrap

    interface tg_optim_create
        module procedure optim_default, optim_long
    end interface tg_optim_create

    ! ---- the C interface ----

    interface
        subroutine tg_context_destroy(ctx) bind(c)
            import :: c_ptr
            type(c_ptr), intent(inout) :: ctx
        end subroutine tg_context_destroy

        subroutine tg_tensor_destroy(tensor) bind(c)
            import :: tg_tensor
            type(tg_tensor), intent(inout) :: tensor
        end subroutine tg_tensor_destroy

        ! y = network(x), both in the units of the data, on the host; f32 or c64.
        integer(c_int) function tg_model_predict(model, x, y) bind(c)
            import :: c_int, c_ptr, tg_tensor
            type(c_ptr), value :: model
            type(tg_tensor), intent(in) :: x
            type(tg_tensor), intent(inout) :: y
        end function tg_model_predict

        subroutine tg_model_destroy(model) bind(c)
            import :: c_ptr
            type(c_ptr), intent(inout) :: model
        end subroutine tg_model_destroy

        subroutine tg_optim_destroy(optim) bind(c)
            import :: c_ptr
            type(c_ptr), intent(inout) :: optim
        end subroutine tg_optim_destroy

        subroutine c_optim_config_init(config, size) bind(c, name="tg_optim_config_init")
            import :: c_size_t, tg_optim_config
            type(tg_optim_config), intent(out) :: config
            integer(c_size_t), value :: size
        end subroutine c_optim_config_init

        integer(c_int) function c_optim_config_set(ctx, config, key, value) &
            bind(c, name="tg_optim_config_set")
            import :: c_char, c_int, c_ptr, tg_optim_config
            type(c_ptr), value :: ctx
            type(tg_optim_config), intent(inout) :: config
            character(c_char), intent(in) :: key(*), value(*)
        end function c_optim_config_set

        integer(c_int) function c_optim_create(ctx, setup, optim) bind(c, name="tg_optim_create")
            import :: c_int, c_ptr, tg_optim_setup
            type(c_ptr), value :: ctx
            type(tg_optim_setup), intent(in) :: setup
            type(c_ptr), intent(out) :: optim
        end function c_optim_create

        integer(c_int) function c_optim_step(optim, param, gradient, weight) &
            bind(c, name="tg_optim_step")
            import :: c_int, c_ptr, tg_tensor
            type(c_ptr), value :: optim
            integer(c_int), value :: param
            type(tg_tensor), intent(in) :: gradient, weight
        end function c_optim_step

        integer(c_int) function c_optim_set_learning_rate(optim, group, rate) &
            bind(c, name="tg_optim_set_learning_rate")
            import :: c_double, c_int, c_ptr
            type(c_ptr), value :: optim
            integer(c_int), value :: group
            real(c_double), value :: rate
        end function c_optim_set_learning_rate

        integer(c_int) function c_context_create(config, ctx) bind(c, name="tg_context_create")
            import :: c_int, c_ptr
            type(c_ptr), value :: config
            type(c_ptr), intent(out) :: ctx
        end function c_context_create

        type(c_ptr) function c_context_error(ctx) bind(c, name="tg_context_error")
            import :: c_ptr
            type(c_ptr), value :: ctx
        end function c_context_error

        type(c_ptr) function c_status_name(status) bind(c, name="tg_status_name")
            import :: c_int, c_ptr
            integer(c_int), value :: status
        end function c_status_name

        integer(c_int) function c_backend_select(ctx, name) bind(c, name="tg_backend_select")
            import :: c_char, c_int, c_ptr
            type(c_ptr), value :: ctx
            character(c_char), intent(in) :: name(*)
        end function c_backend_select

        type(c_ptr) function c_backend_name(ctx) bind(c, name="tg_backend_name")
            import :: c_ptr
            type(c_ptr), value :: ctx
        end function c_backend_name

        integer(c_int) function c_tensor_create(ctx, category, dtype, shape, tensor) &
            bind(c, name="tg_tensor_create")
            import :: c_int, c_ptr, tg_shape, tg_tensor
            type(c_ptr), value :: ctx
            integer(c_int), value :: category, dtype
            type(tg_shape), intent(in) :: shape
            type(tg_tensor), intent(out) :: tensor
        end function c_tensor_create

        integer(c_int) function c_tensor_wrap(ctx, dtype, shape, data, tensor) &
            bind(c, name="tg_tensor_wrap")
            import :: c_int, c_ptr, tg_shape, tg_tensor
            type(c_ptr), value :: ctx
            integer(c_int), value :: dtype
            type(tg_shape), intent(in) :: shape
            type(c_ptr), value :: data
            type(tg_tensor), intent(out) :: tensor
        end function c_tensor_wrap

        integer(c_int) function c_npy_read(ctx, path, tensor) bind(c, name="tg_npy_read")
            import :: c_char, c_int, c_ptr, tg_tensor
            type(c_ptr), value :: ctx
            character(c_char), intent(in) :: path(*)
            type(tg_tensor), intent(out) :: tensor
        end function c_npy_read

        integer(c_int) function c_npy_write(ctx, path, tensor) bind(c, name="tg_npy_write")
            import :: c_char, c_int, c_ptr, tg_tensor
            type(c_ptr), value :: ctx
            character(c_char), intent(in) :: path(*)
            type(tg_tensor), intent(in) :: tensor
        end function c_npy_write

        integer(c_int) function c_model_load(ctx, path, model) bind(c, name="tg_model_load")
            import :: c_char, c_int, c_ptr
            type(c_ptr), value :: ctx
            character(c_char), intent(in) :: path(*)
            type(c_ptr), intent(out) :: model
        end function c_model_load

        integer(c_int) function c_model_save(model, path) bind(c, name="tg_model_save")
            import :: c_char, c_int, c_ptr
            type(c_ptr), value :: model
            character(c_char), intent(in) :: path(*)
        end function c_model_save

        type(c_ptr) function c_model_settings(model) bind(c, name="tg_model_settings")
            import :: c_ptr
            type(c_ptr), value :: model
        end function c_model_settings

        type(c_ptr) function c_settings_get(settings, key) bind(c, name="tg_settings_get")
            import :: c_char, c_ptr
            type(c_ptr), value :: settings
            character(c_char), intent(in) :: key(*)
        end function c_settings_get

        integer(c_size_t) function c_strlen(text) bind(c, name="strlen")
            import :: c_ptr, c_size_t
            type(c_ptr), value :: text
        end function c_strlen
    end interface

contains

    ! ---- contexts ----

    ! With the default settings: all cores, and a GPU if there is one.
    integer(c_int) function tg_context_create(ctx) result(status)
        type(c_ptr), intent(out) :: ctx
        status = c_context_create(c_null_ptr, ctx)
    end function tg_context_create

    ! The message of the last error.
    function tg_context_error(ctx) result(text)
        type(c_ptr), intent(in) :: ctx
        character(:), allocatable :: text
        text = text_of(c_context_error(ctx))
    end function tg_context_error

    function tg_status_name(status) result(text)
        integer(c_int), intent(in) :: status
        character(:), allocatable :: text
        text = text_of(c_status_name(status))
    end function tg_status_name

    ! "cpu", "cuda" or "ref"; call it before any other use of the context.
    integer(c_int) function tg_backend_select(ctx, name) result(status)
        type(c_ptr), intent(in) :: ctx
        character(*), intent(in) :: name
        status = c_backend_select(ctx, trim(name)//c_null_char)
    end function tg_backend_select

    function tg_backend_name(ctx) result(text)
        type(c_ptr), intent(in) :: ctx
        character(:), allocatable :: text
        text = text_of(c_backend_name(ctx))
    end function tg_backend_name

    ! ---- tensors ----

    integer(c_int) function create_long(ctx, dtype, sizes, tensor) result(status)
        type(c_ptr), intent(in) :: ctx
        integer(c_int), intent(in) :: dtype
        integer(c_int64_t), intent(in) :: sizes(:)
        type(tg_tensor), intent(out) :: tensor
        status = c_tensor_create(ctx, MEM_DATA, dtype, shape_of(sizes), tensor)
    end function create_long

    integer(c_int) function create_default(ctx, dtype, sizes, tensor) result(status)
        type(c_ptr), intent(in) :: ctx
        integer(c_int), intent(in) :: dtype
        integer, intent(in) :: sizes(:)
        type(tg_tensor), intent(out) :: tensor
        status = create_long(ctx, dtype, int(sizes, c_int64_t), tensor)
    end function create_default

    ! A view of the caller's array. The array must have the attribute target, be contiguous and
    ! outlive the tensor; `data` is c_loc(array).
    integer(c_int) function wrap_long(ctx, dtype, sizes, data, tensor) result(status)
        type(c_ptr), intent(in) :: ctx
        integer(c_int), intent(in) :: dtype
        integer(c_int64_t), intent(in) :: sizes(:)
        type(c_ptr), intent(in) :: data
        type(tg_tensor), intent(out) :: tensor
        status = c_tensor_wrap(ctx, dtype, shape_of(sizes), data, tensor)
    end function wrap_long

    integer(c_int) function wrap_default(ctx, dtype, sizes, data, tensor) result(status)
        type(c_ptr), intent(in) :: ctx
        integer(c_int), intent(in) :: dtype
        integer, intent(in) :: sizes(:)
        type(c_ptr), intent(in) :: data
        type(tg_tensor), intent(out) :: tensor
        status = wrap_long(ctx, dtype, int(sizes, c_int64_t), data, tensor)
    end function wrap_default

    ! For c_f_pointer(tensor%data, array, tg_tensor_sizes(tensor)).
    function tg_tensor_sizes(tensor) result(sizes)
        type(tg_tensor), intent(in) :: tensor
        integer(c_int64_t) :: sizes(tensor%shape%ndim)
        sizes = tensor%shape%dim(tensor%shape%ndim:1:-1)
    end function tg_tensor_sizes

    ! ---- files ----

    integer(c_int) function tg_npy_read(ctx, path, tensor) result(status)
        type(c_ptr), intent(in) :: ctx
        character(*), intent(in) :: path
        type(tg_tensor), intent(out) :: tensor
        status = c_npy_read(ctx, trim(path)//c_null_char, tensor)
    end function tg_npy_read

    integer(c_int) function tg_npy_write(ctx, path, tensor) result(status)
        type(c_ptr), intent(in) :: ctx
        character(*), intent(in) :: path
        type(tg_tensor), intent(in) :: tensor
        status = c_npy_write(ctx, trim(path)//c_null_char, tensor)
    end function tg_npy_write

    ! ---- models ----

    integer(c_int) function tg_model_load(ctx, path, model) result(status)
        type(c_ptr), intent(in) :: ctx
        character(*), intent(in) :: path
        type(c_ptr), intent(out) :: model
        status = c_model_load(ctx, trim(path)//c_null_char, model)
    end function tg_model_load

    integer(c_int) function tg_model_save(model, path) result(status)
        type(c_ptr), intent(in) :: model
        character(*), intent(in) :: path
        status = c_model_save(model, trim(path)//c_null_char)
    end function tg_model_save

    ! A setting by its key, "fno.n_modes"; "" if it does not exist.
    function tg_model_setting(model, key) result(text)
        type(c_ptr), intent(in) :: model
        character(*), intent(in) :: key
        character(:), allocatable :: text
        text = text_of(c_settings_get(c_model_settings(model), trim(key)//c_null_char))
    end function tg_model_setting

    ! Channels of the input and of the output; 0 without a model.
    integer(c_int64_t) function tg_model_in_channels(model) result(channels)
        type(c_ptr), intent(in) :: model
        channels = number_of(tg_model_setting(model, "fno.in_channels"))
    end function tg_model_in_channels

    integer(c_int64_t) function tg_model_out_channels(model) result(channels)
        type(c_ptr), intent(in) :: model
        channels = number_of(tg_model_setting(model, "fno.out_channels"))
    end function tg_model_out_channels

    ! ---- optimizers, each for one array of the caller ----

    type(tg_optim_config) function tg_optim_config_default() result(config)
        call c_optim_config_init(config, c_sizeof(config))
    end function tg_optim_config_default

    ! The keys are those of section opt: "name" for a whole method, "learning_rate", "rank", ..
    integer(c_int) function tg_optim_config_set(ctx, config, key, value) result(status)
        type(c_ptr), intent(in) :: ctx
        type(tg_optim_config), intent(inout) :: config
        character(*), intent(in) :: key, value
        status = c_optim_config_set(ctx, config, trim(key)//c_null_char, trim(value)//c_null_char)
    end function tg_optim_config_set

    ! For an array of this dtype and these sizes, with zero moments.
    integer(c_int) function optim_long(ctx, config, dtype, sizes, optim) result(status)
        type(c_ptr), intent(in) :: ctx
        type(tg_optim_config), intent(in), target :: config
        integer(c_int), intent(in) :: dtype
        integer(c_int64_t), intent(in) :: sizes(:)
        type(c_ptr), intent(out) :: optim
        character(c_char), target :: name(6) = ["a", "r", "r", "a", "y", c_null_char]
        type(tg_optim_param), target :: param
        type(tg_optim_setup) :: setup
        param%name = c_loc(name)
        param%dtype = dtype
        param%shape = shape_of(sizes)
        setup%size = c_sizeof(setup)
        setup%groups = c_loc(config)
        setup%params = c_loc(param)
        status = c_optim_create(ctx, setup, optim)
    end function optim_long

    integer(c_int) function optim_default(ctx, config, dtype, sizes, optim) result(status)
        type(c_ptr), intent(in) :: ctx
        type(tg_optim_config), intent(in) :: config
        integer(c_int), intent(in) :: dtype
        integer, intent(in) :: sizes(:)
        type(c_ptr), intent(out) :: optim
        status = optim_long(ctx, config, dtype, int(sizes, c_int64_t), optim)
    end function optim_default

    ! One update of the weight, a tensor in the backend's memory, from its gradient dL/dRe + i dL/dIm.
    integer(c_int) function tg_optim_step(optim, gradient, weight) result(status)
        type(c_ptr), intent(in) :: optim
        type(tg_tensor), intent(in) :: gradient, weight
        status = c_optim_step(optim, 0_c_int, gradient, weight)
    end function tg_optim_step

    integer(c_int) function tg_optim_set_learning_rate(optim, rate) result(status)
        type(c_ptr), intent(in) :: optim
        real(c_double), intent(in) :: rate
        status = c_optim_set_learning_rate(optim, 0_c_int, rate)
    end function tg_optim_set_learning_rate

    ! ---- conversions between the languages ----

    function text_of(pointer) result(text)
        type(c_ptr), intent(in) :: pointer
        character(:), allocatable :: text
        character(c_char), pointer :: letters(:)
        integer :: i
        if (.not. c_associated(pointer)) then
            text = ""
            return
        end if
        call c_f_pointer(pointer, letters, [c_strlen(pointer)])
        allocate (character(size(letters)) :: text)
        do i = 1, size(letters)
            text(i:i) = letters(i)
        end do
    end function text_of

    integer(c_int64_t) function number_of(text) result(number)
        character(*), intent(in) :: text
        integer :: trouble
        read (text, *, iostat=trouble) number
        if (trouble /= 0) number = 0
    end function number_of

    ! More than TG_MAX_NDIM sizes give an ndim that the library rejects.
    pure type(tg_shape) function shape_of(sizes) result(shape)
        integer(c_int64_t), intent(in) :: sizes(:)
        integer :: i
        shape%ndim = size(sizes)
        do i = 1, min(size(sizes), TG_MAX_NDIM)
            shape%dim(i) = sizes(size(sizes) + 1 - i)
        end do
    end function shape_of
end module tgrad
