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
