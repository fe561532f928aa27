# Comments of the headers in Doxygen's form: before a declaration, or after it on its line.
s#^( *)/\* #\1/** #
s#^([^/]*[;,{].*)/\* #\1/**< #
s#^( *TG_[A-Z0-9_]+.*[^*])/\* #\1/**< #
/^#include/!s#<([a-z]+)>#\&lt;\1\&gt;#g
