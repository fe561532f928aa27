# make install: headers, both libraries, pkg-config file and CMake package.
install(DIRECTORY include/tgrad DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(TARGETS tgrad EXPORT tgrad-targets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(FILES $<TARGET_FILE:tgrad_static> DESTINATION ${CMAKE_INSTALL_LIBDIR})

# tgrad.pc finds its prefix from where it stands, so that an installed tree may be moved.
file(RELATIVE_PATH TG_PC_PREFIX /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
string(REGEX REPLACE "/$" "" TG_PC_PREFIX ${TG_PC_PREFIX})
string(REPLACE ";" " " TG_PC_LIBS "${tg_pc_libs};${OpenMP_C_FLAGS};-lpthread;-lm")
configure_file(cmake/tgrad.pc.in tgrad.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/tgrad.pc
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

install(EXPORT tgrad-targets NAMESPACE tgrad:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/tgrad)
configure_package_config_file(cmake/tgradConfig.cmake.in tgradConfig.cmake
                              INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/tgrad)
write_basic_package_version_file(tgradConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/tgradConfig.cmake
              ${CMAKE_CURRENT_BINARY_DIR}/tgradConfigVersion.cmake
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/tgrad)
