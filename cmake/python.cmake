# The Python package stands in python/; the build writes what it must know of the headers beside it.
find_package(Python3 COMPONENTS Interpreter)
if(Python3_FOUND)
    set(generator ${CMAKE_CURRENT_SOURCE_DIR}/scripts/python_interface)
    set(interface ${CMAKE_CURRENT_SOURCE_DIR}/python/libtgrad/_interface.py)
    file(GLOB headers CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/include/tgrad/*.h)
    add_custom_command(OUTPUT ${interface} COMMAND ${Python3_EXECUTABLE} ${generator} ${interface}
                       DEPENDS ${generator} ${headers} VERBATIM)
    add_custom_target(tgrad_python ALL DEPENDS ${interface})
endif()

# What the wheel holds beside the package's modules (pyproject.toml), with the licences of the libraries
# that became a part of it, as Debian tells them. cuBLAS and cuSOLVER are those of pip's nvidia packages,
# which stand beside this one and which PyTorch brings, or of the system.
if(TG_STANDALONE)
    install(FILES ${interface} DESTINATION . COMPONENT python)
    foreach(target tgrad tgrad_h5 tgrad_cli)
        install(PROGRAMS $<TARGET_FILE:${target}> DESTINATION . COMPONENT python)
    endforeach()
    foreach(package libopenblas-dev liblapacke-dev libhdf5-dev libaec-dev zlib1g-dev libjansson-dev libfyaml-dev
            libpng-dev libgfortran5 libgomp1)
        if(EXISTS /usr/share/doc/${package}/copyright)
            install(FILES /usr/share/doc/${package}/copyright DESTINATION licences
                    RENAME ${package}.txt COMPONENT python)
        endif()
    endforeach()
    if(TG_CUDA)
        set(folders)
        foreach(folder cu${CUDAToolkit_VERSION_MAJOR} cublas cusolver)
            list(APPEND folders "$ORIGIN/../nvidia/${folder}/lib")
        endforeach()
        set_target_properties(tgrad PROPERTIES INSTALL_RPATH "${folders}")
    endif()
endif()
