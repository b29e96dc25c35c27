# Parquet through Arrow's C++ libraries as Python's package pyarrow (PyPI) ships them with their headers: neither Debian nor Ubuntu packages them.
# -DPython3_EXECUTABLE chooses the Python; the program then needs that package where it lies. Tried with pyarrow 26.0.1.
function(sluice_parquet)
  find_package(Python3 REQUIRED COMPONENTS Interpreter)
  execute_process(COMMAND ${Python3_EXECUTABLE} -c "import pyarrow; print(pyarrow.get_include(), pyarrow.get_library_dirs()[0], sep=';', end='')"
                  OUTPUT_VARIABLE paths RESULT_VARIABLE failed)
  if(failed)
    message(FATAL_ERROR "SLUICE_PARQUET needs the package pyarrow in ${Python3_EXECUTABLE}: pip install pyarrow, or give -DPython3_EXECUTABLE")
  endif()
  list(GET paths 0 include)
  list(GET paths 1 folder)
  file(GLOB libraries ${folder}/libarrow.so.* ${folder}/libparquet.so.*)
  target_include_directories(sluice_data SYSTEM PRIVATE ${include})
  target_link_libraries(sluice_data PRIVATE "$<BUILD_INTERFACE:${libraries}>")
  target_compile_definitions(sluice_data PRIVATE SLUICE_PARQUET=1)
  set(CMAKE_BUILD_RPATH "${CMAKE_BUILD_RPATH};${folder}" PARENT_SCOPE)
  set(CMAKE_INSTALL_RPATH "${folder}" PARENT_SCOPE)
endfunction()
