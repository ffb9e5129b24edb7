"""The sizes and layer roles of a config.json, as the training code needs them. Read by every script of this folder."""

import dataclasses
import json
import pathlib


@dataclasses.dataclass(frozen=True)
class Role:
    """What a backbone layer reads: `owner` holds its compressed rows, `index` its selection; numbers count the
    sources."""

    ratio: int
    owner: int = -1  # position in kv_source_layer_ids
    index: int = -1  # position in index_source_layer_ids
    is_kv_source: bool = False
    is_index_source: bool = False


class Geometry:
    """Attributes are the keys of text_config; `roles` has one Role for each backbone layer."""

    def __init__(self, config):
        self.config = config
        self.__dict__.update(config.get('text_config', config))
        self.dspark_n_routed_experts = self.dspark_n_routed_experts or self.n_routed_experts
        self.dspark_num_experts_per_tok = self.dspark_num_experts_per_tok or self.num_experts_per_tok
        scaling = self.rope_scaling
        self.yarn = (
            scaling['factor'],
            scaling['beta_fast'],
            scaling['beta_slow'],
            scaling['original_max_position_embeddings'],
        )
        self.roles = [self._role(layer) for layer in range(self.num_hidden_layers)]
        self.num_columns = (self.engram_max_ngram_size - 1) * self.engram_n_heads
        self.index_owners = [self.roles[layer].owner for layer in self.index_source_layer_ids]
        self.gated_sources = [i for i, layer in enumerate(self.kv_source_layer_ids) if self.compress_ratios[layer] == 2]

    def _role(self, layer):
        ratio = self.compress_ratios[layer]
        if ratio == 0:
            return Role(0)
        owners = [i for i, source in enumerate(self.kv_source_layer_ids) if source <= layer]
        indices = [i for i, source in enumerate(self.index_source_layer_ids) if source <= layer]
        return Role(
            ratio, owners[-1], indices[-1], layer in self.kv_source_layer_ids, layer in self.index_source_layer_ids
        )


def load_geometry(path):
    path = pathlib.Path(path)
    return Geometry(json.loads((path / 'config.json' if path.is_dir() else path).read_text(encoding='utf-8')))
