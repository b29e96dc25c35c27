# Fails on an include that goes upward. Reads the sluice_library(folder dependencies…) lines of CMakeLists.txt:
#
#   - a folder depends only on folders named on an earlier line, so there is no circle;
#   - a file under src/<folder> includes "<folder>/…" or "<dependency>/…", and no other folder of src;
#   - what kernels alone need (cpu_simd.h, dispatch.h, cuda_*) is included by ops only;
#   - cpu_simd.h changes the instruction set of what follows it: only *_cpu.cpp may include it, and after it come only
#     parts of kernels, from ops.
#
#   cmake -P tests/layering_test.cmake          (SOURCE_DIR=… for another tree)
cmake_minimum_required(VERSION 3.25)
if(NOT SOURCE_DIR)
  get_filename_component(SOURCE_DIR ${CMAKE_CURRENT_LIST_DIR}/.. ABSOLUTE)
endif()

set(faults "")
macro(fault)
  string(APPEND faults "  " ${ARGN} "\n")
endmacro()

# 1. The folders, lowest first.
file(STRINGS ${SOURCE_DIR}/CMakeLists.txt lines REGEX "^sluice_library\\(")
set(folders "")
foreach(line ${lines})
  string(REGEX REPLACE "^sluice_library\\(([^)]*)\\).*" "\\1" words "${line}")
  separate_arguments(words)
  list(POP_FRONT words folder)
  foreach(dependency ${words})
    if(NOT dependency IN_LIST folders)
      fault("CMakeLists.txt: ${folder} depends on ${dependency}, which is not on an earlier line")
    endif()
  endforeach()
  list(APPEND folders ${folder})
  set(allowed_${folder} ${folder} ${words})
endforeach()
if(NOT folders)
  fault("CMakeLists.txt: no sluice_library(…) lines")
endif()

# 2. Each folder of src is named.
file(GLOB entries RELATIVE ${SOURCE_DIR}/src ${SOURCE_DIR}/src/*)
foreach(entry ${entries})
  file(GLOB contents ${SOURCE_DIR}/src/${entry}/*)
  if(contents AND IS_DIRECTORY ${SOURCE_DIR}/src/${entry} AND NOT entry IN_LIST folders)
    fault("src/${entry}: not named by a sluice_library(…) line of CMakeLists.txt")
  endif()
endforeach()

# 3. Each include.
set(num_files 0)
foreach(folder ${folders})
  file(GLOB_RECURSE files RELATIVE ${SOURCE_DIR}
       ${SOURCE_DIR}/src/${folder}/*.h ${SOURCE_DIR}/src/${folder}/*.cpp
       ${SOURCE_DIR}/src/${folder}/*.cuh ${SOURCE_DIR}/src/${folder}/*.cu)
  foreach(file ${files})
    math(EXPR num_files "${num_files} + 1")
    file(STRINGS ${SOURCE_DIR}/${file} includes REGEX "^[ \t]*#[ \t]*include[ \t]*[\"<]")
    set(after_simd FALSE)
    foreach(line ${includes})
      if(after_simd AND NOT line MATCHES "include[ \t]*\"ops/[a-z_]+/")
        fault("${file}: '${line}' stands after ops/common/cpu_simd.h, which must be the last include")
      endif()
      if(NOT line MATCHES "include[ \t]*[\"<]((([^/\">]+)/)?[^\">]*)[\">]")
        continue()
      endif()
      set(header ${CMAKE_MATCH_1})
      set(target "${CMAKE_MATCH_3}")
      if(target IN_LIST folders AND NOT target IN_LIST allowed_${folder})
        string(REPLACE ";" " " may "${allowed_${folder}}")
        fault("${file}: includes ${header}, but ${folder} may use only: ${may}")
      endif()
      if(header MATCHES "^\\.\\./|/\\.\\./")
        fault("${file}: includes ${header}; write the path from src/")
      endif()
      if(header MATCHES "^ops/common/(cpu_simd|dispatch|cuda_utils)" AND NOT folder STREQUAL "ops")
        fault("${file}: includes ${header}, which is for kernels only")
      endif()
      if(header STREQUAL "ops/common/cpu_simd.h")
        set(after_simd TRUE)
        if(NOT file MATCHES "_cpu\\.cpp$")
          fault("${file}: includes ${header}; only *_cpu.cpp files may")
        endif()
      endif()
    endforeach()
  endforeach()
endforeach()

if(faults)
  message(FATAL_ERROR "layering:\n${faults}")
endif()
list(LENGTH folders num_folders)
message(STATUS "layering: ${num_files} files in ${num_folders} folders, no upward include")
