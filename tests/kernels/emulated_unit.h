// The matrix unit's functions by other names, over instructions of emulated_amx.h: what is included
// after this calls those that bf16_unit_test.cpp makes of src/kernels/cpu/bf16_unit.cpp.
#pragma once

#define ONEFOLD_AMX_INTRINSICS "kernels/emulated_amx.h"
#define has_bf16_unit emulated_has_bf16_unit
#define has_bf16_tiles emulated_has_bf16_tiles
#define unit_pack emulated_unit_pack
#define unit_multiply emulated_unit_multiply
#define unit_split emulated_unit_split
#define unit_store_transposed emulated_unit_store_transposed
#define UnitTurn EmulatedUnitTurn
#define packed_lines emulated_packed_lines
#define packed_columns emulated_packed_columns
#define rows_as_lines emulated_rows_as_lines
