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

tg_embed(predict_sources predict README.md example.c tgrad_predict.h tgrad_predict_inside.h tgrad_predict.c
         tgrad_predict_run.c)
