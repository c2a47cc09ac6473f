#pragma once

#include "tandem/kernels/cpu/context.h"

namespace tandem::kernels::cpu {

// The operations of kernels/backend.h, each one run of the team. Same names, same contracts.

void embed(Context& c, const Weight& table, float scale, Rows x);
void ple_inputs(Context& c, const PleInputWeights& w, Rows x, Rows ple);
void attention(Context& c, const AttentionWeights& w, const AttentionSpec& spec, Rows x);
void ffn(Context& c, const FfnWeights& w, float scale, Rows x);
void moe(Context& c, const MoeWeights& w, float scale, Rows x);
void ple(Context& c, const PleLayerWeights& w, Rows ple, int layer, float scale, Rows x);
void final_norm(Context& c, const Head& head, Rows x, Rows h);
void logits(Context& c, const Head& head, Rows h, Rows out);
void verify(Context& c, const Head& head, Rows h);
void draft_input(Context& c, const DraftWeights& w, int i, Rows x);
void draft_head(Context& c, const DraftWeights& w, int i, Rows x);

}  // namespace tandem::kernels::cpu
