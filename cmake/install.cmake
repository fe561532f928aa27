# make install: headers, both libraries, pkg-config files and CMake package; configurations, examples and
# completion scripts.
install(DIRECTORY include/tgrad DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(TARGETS tgrad EXPORT tgrad-targets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(FILES $<TARGET_FILE:tgrad_static> DESTINATION ${CMAKE_INSTALL_LIBDIR})

# tgrad.pc finds its prefix from where it stands, so that an installed tree may be moved.
file(RELATIVE_PATH TG_PC_PREFIX /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
string(REGEX REPLACE "/$" "" TG_PC_PREFIX ${TG_PC_PREFIX})
string(REPLACE ";" " " TG_PC_LIBS "${tg_pc_libs};${OpenMP_C_FLAGS};-lpthread;-lm")
configure_file(cmake/tgrad.pc.in tgrad.pc @ONLY)
configure_file(cmake/tgrad-static.pc.in tgrad-static.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/tgrad.pc ${CMAKE_CURRENT_BINARY_DIR}/tgrad-static.pc
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

install(EXPORT tgrad-targets NAMESPACE tgrad:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/tgrad)
configure_package_config_file(cmake/tgradConfig.cmake.in tgradConfig.cmake
                              INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/tgrad)
write_basic_package_version_file(tgradConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/tgradConfig.cmake
              ${CMAKE_CURRENT_BINARY_DIR}/tgradConfigVersion.cmake
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/tgrad)

install(DIRECTORY configs examples DESTINATION ${CMAKE_INSTALL_DATADIR}/tgrad)

# Where each shell looks for completion scripts.
set(tg_completions)
foreach(shell bash zsh fish)
    set(script ${CMAKE_CURRENT_BINARY_DIR}/completions/${shell})
    add_custom_command(OUTPUT ${script} COMMAND ${CMAKE_COMMAND} -E make_directory completions
                       COMMAND tgrad_cli completion ${shell} > ${script} DEPENDS tgrad_cli VERBATIM)
    list(APPEND tg_completions ${script})
endforeach()
add_custom_target(completions ALL DEPENDS ${tg_completions})
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/completions/bash
        DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME tgrad)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/completions/zsh
        DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions RENAME _tgrad)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/completions/fish
        DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d RENAME tgrad.fish)
