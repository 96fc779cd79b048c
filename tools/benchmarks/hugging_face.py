"""Hugging Face transformers on PyTorch, as a side of the benchmarks."""

import os

from tools.benchmarks.harness import Side, make_batch

TOP_P = 0.95
LEARNING_RATE, WEIGHT_DECAY, CLIP_NORM = 2e-5, 0.01, 1.0


class Transformers(Side):
    """Hugging Face's models of the same size, with scaled dot-product attention."""

    def model(self, name, **fields):
        import torch
        import transformers

        torch.set_num_threads(len(os.sched_getaffinity(0)))
        config = transformers.RoFormerConfig(
            vocab_size=self.vocabulary,
            embedding_size=self.hidden,
            hidden_size=self.hidden,
            num_hidden_layers=self.layers,
            num_attention_heads=self.hidden // 64,
            intermediate_size=4 * self.hidden,
            **fields,
        )
        model = getattr(transformers, name)(config)
        return model.to("cuda" if torch.cuda.is_available() else "cpu")

    def inputs(self, rows, length, device):
        import torch

        token_ids, segment_ids = make_batch(rows, length, self.vocabulary)
        token_ids = torch.from_numpy(token_ids).long()
        return {
            "input_ids": token_ids.to(device),
            "attention_mask": (token_ids != 0).long().to(device),
            "token_type_ids": torch.from_numpy(segment_ids).long().to(device),
        }

    def encoder(self):
        """Compiled, where PyTorch can do so."""
        import torch

        model = self.model("RoFormerModel").eval().to(torch.bfloat16)
        return torch.compile(model) if torch.cuda.is_available() else model

    def encode(self, rows, length):
        import torch

        model = self.keep(self.encoder)
        inputs = self.keep(self.inputs, rows, length, model.device)
        with torch.inference_mode():
            for _ in range(self.calls):
                model(**inputs)[0][:, 0].float().cpu()

    latency = encode

    def writer(self, dtype):
        import torch

        model = self.model("RoFormerForCausalLM", is_decoder=True)
        return model.eval().to(getattr(torch, dtype))

    def generate(self, rows, length, dtype="bfloat16"):
        """Samples of so many tokens after one prompt of ids."""
        import torch

        model = self.keep(self.writer, dtype)
        ids = self.keep(self.inputs, 1, length, model.device)["input_ids"].clamp(min=1)
        torch.manual_seed(0)
        for _ in range(self.calls):
            model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=True,
                top_p=TOP_P,
                top_k=0,
                num_return_sequences=rows,
                max_new_tokens=self.new,
                min_new_tokens=self.new,
                pad_token_id=0,
            ).cpu()

    def classifier(self):
        import torch

        model = self.model("RoFormerForSequenceClassification", num_labels=2).train()
        optimizer = torch.optim.AdamW(
            model.parameters(), LEARNING_RATE, weight_decay=WEIGHT_DECAY
        )
        return model, optimizer

    def step(self, rows, length, dtype="bfloat16"):
        """Updates on one batch; in bfloat16 those of mixed precision."""
        import torch

        model, optimizer = self.keep(self.classifier)
        inputs = self.keep(self.inputs, rows, length, model.device)
        labels = (torch.arange(rows) % 2).to(model.device)
        for _ in range(self.calls):
            with torch.autocast(
                model.device.type, torch.bfloat16, enabled=dtype == "bfloat16"
            ):
                loss = model(**inputs, labels=labels).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
            optimizer.step()
            optimizer.zero_grad()
            loss.item()
