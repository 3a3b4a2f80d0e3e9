"""The endpoint at which a release is asked, with the key that belongs to its address and to no other."""

from __future__ import annotations

from trainer.advice.advisor import OpenModel
from trainer.config.sections import EndpointSecrets
from trainer.config.training import AddressSettings
from trainer.ledger.releases import Promotion
from trainer.types import WANDB_BASE_URL, ChatModel


def opener(addresses: AddressSettings, secrets: EndpointSecrets) -> OpenModel:
    """Opens promotions where they are served. An address that this host's settings do not name is sent no key."""
    served = None if secrets.serve_key is None else secrets.serve_key.get_secret_value()
    wandb = None if secrets.wandb_api_key is None else secrets.wandb_api_key.get_secret_value()
    keys = {addresses.serve_url: served, addresses.wandb_base_url or WANDB_BASE_URL: wandb}

    def open_model(promotion: Promotion, seconds: float) -> ChatModel:
        from trainer.inference.chat_models import EndpointModel

        return EndpointModel(
            promotion.base_url,
            promotion.served_model,
            keys.get(promotion.base_url) or "none",
            name=promotion.checkpoint.name,
            timeout=seconds,
        )

    return open_model
