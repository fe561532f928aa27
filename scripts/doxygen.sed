# Comments of the headers as Doxygen wants them: before a thing, and behind one on its line.
s#^( *)/\* #\1/** #
s#^([^/]*[;,{].*)/\* #\1/**< #
s#^( *TG_[A-Z0-9_]+.*[^*])/\* #\1/**< #
/^#include/!s#<([a-z]+)>#\&lt;\1\&gt;#g
