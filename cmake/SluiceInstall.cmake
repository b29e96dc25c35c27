# `cmake --install`: the program, the static libraries, the headers as <sluice/…>, and the package sluice for
# find_package(sluice), which gives the one target sluice::sluice.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

function(sluice_install)
  get_property(names GLOBAL PROPERTY SLUICE_LIBRARIES)
  list(REMOVE_ITEM names cli)
  add_library(sluice_api INTERFACE)
  set_target_properties(sluice_api PROPERTIES EXPORT_NAME sluice)
  target_compile_features(sluice_api INTERFACE cxx_std_20)
  target_include_directories(sluice_api INTERFACE $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  foreach(name ${names})
    set_target_properties(sluice_${name} PROPERTIES EXPORT_NAME ${name})
    target_link_libraries(sluice_api INTERFACE sluice_${name})
    list(APPEND targets sluice_${name})
  endforeach()

  install(TARGETS sluice_api ${targets} EXPORT sluice ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
  install(EXPORT sluice FILE sluiceTargets.cmake NAMESPACE sluice:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/sluice)
  configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/sluiceConfig.cmake.in ${PROJECT_BINARY_DIR}/sluiceConfig.cmake
                                INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/sluice)
  write_basic_package_version_file(${PROJECT_BINARY_DIR}/sluiceConfigVersion.cmake COMPATIBILITY SameMinorVersion)
  install(FILES ${PROJECT_BINARY_DIR}/sluiceConfig.cmake ${PROJECT_BINARY_DIR}/sluiceConfigVersion.cmake
          DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/sluice)
  install(FILES ${PROJECT_SOURCE_DIR}/LICENSE ${PROJECT_SOURCE_DIR}/NOTICE DESTINATION ${CMAKE_INSTALL_DOCDIR})
  if(TARGET sluice)
    install(TARGETS sluice RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  endif()
  sluice_install_headers(${names})
endfunction()

# The sources say "core/tensor.h"; an installed header must not claim such names on its user's include path, so it says
# "sluice/core/tensor.h". References and kernel parts stay behind.
function(sluice_install_headers)
  list(JOIN ARGN "|" folders)
  install(CODE "
    file(GLOB_RECURSE headers RELATIVE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/src/*.h)
    foreach(header \${headers})
      if(NOT header MATCHES \"^((${folders})/.*|sluice\\\\.h)\$\" OR header MATCHES \"_ref\\\\.h\$|/cpu_simd\\\\.h\$\")
        continue()
      endif()
      file(READ ${PROJECT_SOURCE_DIR}/src/\${header} text)
      string(REGEX REPLACE \"#include \\\"(${folders})/\" \"#include \\\"sluice/\\\\1/\" text \"\${text}\")
      file(WRITE ${PROJECT_BINARY_DIR}/installed_headers/\${header} \"\${text}\")
      get_filename_component(folder \${header} DIRECTORY)
      file(INSTALL ${PROJECT_BINARY_DIR}/installed_headers/\${header}
           DESTINATION \${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_INCLUDEDIR}/sluice/\${folder})
    endforeach()")
endfunction()

# The installed package as a user meets it: examples/embed is configured, built and run against it.
function(sluice_embed_test)
  if(NOT SLUICE_TESTS OR NOT EXISTS ${PROJECT_SOURCE_DIR}/examples/embed/CMakeLists.txt)
    return()
  endif()
  set(prefix ${PROJECT_BINARY_DIR}/prefix)
  add_test(NAME install COMMAND ${CMAKE_COMMAND} --install ${PROJECT_BINARY_DIR} --prefix ${prefix})
  set_tests_properties(install PROPERTIES LABELS full FIXTURES_SETUP installed)
  add_test(NAME embed COMMAND ${CMAKE_CTEST_COMMAND}
           --build-and-test ${PROJECT_SOURCE_DIR}/examples/embed ${PROJECT_BINARY_DIR}/embed --build-generator ${CMAKE_GENERATOR}
           --build-options -DCMAKE_PREFIX_PATH=${prefix} -DCMAKE_CXX_COMPILER=${CMAKE_CXX_COMPILER} -DCMAKE_CXX_FLAGS=${CMAKE_CXX_FLAGS}
           -DCMAKE_BUILD_TYPE=${CMAKE_BUILD_TYPE}
           --test-command ${PROJECT_BINARY_DIR}/embed/embed ${PROJECT_SOURCE_DIR}/tests/golden/fixtures/llama-gqa)
  set_tests_properties(embed PROPERTIES LABELS full FIXTURES_REQUIRED installed)
endfunction()
