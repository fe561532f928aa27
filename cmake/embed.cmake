# tg_embed(NAME FOLDER file..): the files as a table for the program, to be included as "NAME.inc":
#   static const struct { const char *name, *text; size_t size; } NAME[];  text ends with a 0 beyond its size
set(tg_embedded ${CMAKE_CURRENT_BINARY_DIR}/embedded)
function(tg_embed table folder)
    set(text "/* Made by cmake/embed.cmake from the folder ${folder}. */\n")
    set(rows "")
    set(number 0)
    foreach(name ${ARGN})
        set(file ${CMAKE_CURRENT_SOURCE_DIR}/${folder}/${name})
        set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
        file(READ ${file} bytes HEX)
        string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
        string(APPEND text "static const unsigned char ${table}_${number}[] = {${bytes}0};\n")
        string(APPEND rows
               "    {\"${name}\", (const char *)${table}_${number}, sizeof ${table}_${number} - 1},\n")
        math(EXPR number "${number} + 1")
    endforeach()
    string(APPEND text "static const struct {\n    const char *name, *text;\n    size_t size;\n"
                       "} ${table}[] = {\n${rows}};\n")
    file(CONFIGURE OUTPUT ${tg_embedded}/${table}.inc CONTENT "${text}" @ONLY)
endfunction()
