# One library per folder: tandem_library(core status.cc ... DEPENDS fmt::fmt).
# A library sees only the headers of the folders it depends on: each folder's headers reach the
# compiler through a folder of symbolic links of its own, so that an include of a folder that is
# not among the dependencies does not compile, and a call into it does not link.

set(TANDEM_WARNINGS -Wall -Wextra -Wconversion -Wno-sign-conversion)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  list(APPEND TANDEM_WARNINGS -Wno-restrict)  # gcc 12 sees overlaps in std::string that are not there
endif()
if(TANDEM_WERROR)
  list(APPEND TANDEM_WARNINGS -Werror)
endif()

# The bits of a float result are part of the contract: no contraction, no fast math anywhere.
add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off>)
if(TANDEM_SANITIZE)
  add_compile_options(-fsanitize=${TANDEM_SANITIZE} -fno-sanitize-recover=all
                      -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${TANDEM_SANITIZE})
endif()

function(tandem_library name)
  cmake_parse_arguments(ARG "" "" "DEPENDS;PRIVATE" ${ARGN})
  string(REPLACE "_" "/" folder ${name})
  if(NOT IS_DIRECTORY ${PROJECT_SOURCE_DIR}/src/${folder})
    set(folder ${name})
  endif()
  set(view ${PROJECT_BINARY_DIR}/include/${name})
  get_filename_component(parent ${view}/tandem/${folder} DIRECTORY)
  file(MAKE_DIRECTORY ${parent})
  file(CREATE_LINK ${PROJECT_SOURCE_DIR}/src/${folder} ${view}/tandem/${folder} SYMBOLIC)
  add_library(tandem_${name} STATIC ${ARG_UNPARSED_ARGUMENTS})
  add_library(tandem::${name} ALIAS tandem_${name})
  target_include_directories(tandem_${name} PUBLIC ${view})
  target_link_libraries(tandem_${name} PUBLIC ${ARG_DEPENDS} PRIVATE ${ARG_PRIVATE})
  target_compile_options(tandem_${name} PRIVATE ${TANDEM_WARNINGS})
endfunction()

# tandem_test(gguf_test DEPENDS tandem::formats [LABELS slow] [TIMEOUT 120]): one executable from
# NAME.cc beside the caller; each of its cases is a ctest case named FOLDER/Suite.Case.
function(tandem_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "DEPENDS;LABELS;SOURCES" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  get_filename_component(folder ${CMAKE_CURRENT_SOURCE_DIR} NAME)
  add_executable(${name} ${name}.cc ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_DEPENDS} GTest::gtest GTest::gmock
                        GTest::gtest_main rapidcheck)
  target_compile_options(${name} PRIVATE ${TANDEM_WARNINGS})
  target_compile_definitions(${name} PRIVATE
    TANDEM_SOURCE_DIR="${PROJECT_SOURCE_DIR}" TANDEM_BINARY_DIR="${PROJECT_BINARY_DIR}")
  include(GoogleTest)
  gtest_discover_tests(${name} TEST_PREFIX "${folder}/" DISCOVERY_TIMEOUT 60
    PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS "${folder};${ARG_LABELS}")
endfunction()
