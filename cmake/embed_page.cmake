# cmake -DOUTPUT=page_data.cc -DFILES="a.html;b.js" -P embed_page.cmake: writes the files as arrays,
# see src/server/page.h.
set(arrays "")
set(entries "")
foreach(path IN LISTS FILES)
  get_filename_component(name ${path} NAME)
  string(MAKE_C_IDENTIFIER ${name} identifier)
  file(READ ${path} bytes HEX)
  string(REGEX REPLACE "(..)" "'\\\\x\\1'," bytes "${bytes}")
  string(APPEND arrays "constexpr char ${identifier}[] = {${bytes}};\n")
  string(APPEND entries "    {\"${name}\", {${identifier}, sizeof ${identifier}}},\n")
endforeach()
file(WRITE ${OUTPUT} "#include \"tandem/server/page.h\"

namespace tandem::server {
namespace {

${arrays}
constexpr PageFile kFiles[] = {
${entries}};

}  // namespace

std::span<const PageFile> page_files() {
  return kFiles;
}

}  // namespace tandem::server
")
