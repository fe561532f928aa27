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

install(DIRECTORY configs examples fortran DESTINATION ${CMAKE_INSTALL_DATADIR}/tgrad)

# What the program prints of itself: completion scripts, where each shell looks for them, and the man
# page.
set(tg_printed)
function(tg_print file)
    add_custom_command(OUTPUT ${file} COMMAND tgrad_cli ${ARGN} > ${file} DEPENDS tgrad_cli VERBATIM)
    list(APPEND tg_printed ${CMAKE_CURRENT_BINARY_DIR}/${file})
    set(tg_printed ${tg_printed} PARENT_SCOPE)
endfunction()
file(MAKE_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/completions)
foreach(shell bash zsh fish)
    tg_print(completions/${shell} completion ${shell})
endforeach()
tg_print(tgrad.1 help man)
add_custom_target(printed ALL DEPENDS ${tg_printed})
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/tgrad.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/completions/bash
        DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME tgrad)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/completions/zsh
        DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions RENAME _tgrad)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/completions/fish
        DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d RENAME tgrad.fish)
