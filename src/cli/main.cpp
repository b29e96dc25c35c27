#include "cli/command.h"

int main(int argc, char** argv) { return sluice::run_cli(argc, argv); }
