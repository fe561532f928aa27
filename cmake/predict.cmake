# libtgrad_predict: predictions with the C library alone; and its sources as a part of the program, which
# writes them (`tgrad export --c`).
add_library(tgrad_predict STATIC predict/tgrad_predict.c predict/tgrad_predict_run.c)
target_include_directories(tgrad_predict PUBLIC $<BUILD_INTERFACE:${CMAKE_CURRENT_SOURCE_DIR}/predict>
                                                $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
target_link_libraries(tgrad_predict PRIVATE tg_options)
target_compile_options(tgrad_predict PRIVATE -ffp-contract=fast -fno-math-errno -fno-trapping-math)
set_target_properties(tgrad_predict PROPERTIES POSITION_INDEPENDENT_CODE ON)
install(TARGETS tgrad_predict ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(FILES predict/tgrad_predict.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})

set(text "/* Made by cmake/predict.cmake from the folder predict; read by cli/model/cmd_export.c. */\n")
set(table "")
set(number 0)
foreach(name README.md example.c tgrad_predict.h tgrad_predict_inside.h tgrad_predict.c
             tgrad_predict_run.c)
    set(file ${CMAKE_CURRENT_SOURCE_DIR}/predict/${name})
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
    file(READ ${file} bytes HEX)
    string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
    string(APPEND text "static const unsigned char file_${number}[] = {${bytes}};\n")
    string(APPEND table "    {\"${name}\", file_${number}, sizeof file_${number}},\n")
    math(EXPR number "${number} + 1")
endforeach()
string(APPEND text "\nstatic const struct {\n    const char *name;\n    const unsigned char *text;\n    size_t size;\n"
                   "} predict_sources[] = {\n${table}};\n")
set(tg_embedded ${CMAKE_CURRENT_BINARY_DIR}/embedded)
file(CONFIGURE OUTPUT ${tg_embedded}/predict_sources.inc CONTENT "${text}" @ONLY)
