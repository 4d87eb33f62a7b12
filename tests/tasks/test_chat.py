"""Where a prompt ends and an answer begins, token by token, under the chat templates of several families."""

from pathlib import Path

import pytest
from tiny_chat import CHATML, SPECIAL, save_model, tokenizer

from minirl.config import ChatConfig, ConfigError
from minirl.tasks.chat import Chat

LLAMA = (
    "{% for message in messages %}<|start_header_id|>{{ message.role }}<|end_header_id|>\n\n"
    "{{ message.content | trim }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
MISTRAL = (
    "{% for message in messages %}{% if message.role == 'user' %}[INST] {{ message.content }} [/INST]"
    "{% elif message.role == 'assistant' %} {{ message.content }} </s>{% else %}"
    "{{ raise_exception('no such role') }}{% endif %}{% endfor %}"
)
# as DeepSeek-R1 does: opens the thought itself, and drops the thought of an answer that it renders
THINKING = (
    "{% for message in messages %}{% if message.role == 'user' %}<|User|>{{ message.content }}"
    "{% else %}<|Assistant|>{{ message.content.split('</think>')[-1] }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|Assistant|><think>\n{% endif %}"
)
FAMILIES = {
    "chatml": (CHATML, SPECIAL, "<|im_end|>"),
    "llama": (LLAMA, ("<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"), "<|eot_id|>"),
    "mistral": (MISTRAL, ("</s>", "[INST]", "[/INST]"), "</s>"),
    "thinking": (THINKING, ("<|end|>", "<|User|>", "<|Assistant|>"), "<|end|>"),
    "no end in the template": ("{% for m in messages %}{{ m.content }}\n{% endfor %}", ("<end>",), "<end>"),
}


def chat(name: str, system: str | None = None, instruction: str | None = None) -> Chat:
    template, special, _ = FAMILIES[name]
    return Chat(tokenizer(template, special), system, instruction)


@pytest.mark.parametrize("name", FAMILIES)
def test_the_end_of_a_turn_is_the_templates_own(name: str) -> None:
    made = chat(name)
    assert made.tokenizer.convert_ids_to_tokens(made.eos) == FAMILIES[name][2]


def test_a_conversation_token_by_token() -> None:
    made = chat("chatml")
    prompt = made.prompt("Hi")
    assert made.tokenizer.convert_ids_to_tokens(list(prompt)) == [
        *("<|im_start|>", "u", "s", "e", "r", "Ċ", "H", "i", "<|im_end|>", "Ċ"),
        *("<|im_start|>", "a", "s", "s", "i", "s", "t", "a", "n", "t", "Ċ"),
    ]
    answer = made.answer([{"role": "user", "content": "Hi"}], "Yo")
    assert made.tokenizer.convert_ids_to_tokens(list(answer)) == ["Y", "o", "<|im_end|>"]


@pytest.mark.parametrize("name", ["chatml", "llama"])
def test_prompt_and_answer_are_what_the_template_writes_for_both(name: str) -> None:
    """The rendered conversation begins with prompt + answer: nothing between them, nothing of the answer in the
    prompt."""
    made = chat(name)
    messages = [{"role": "user", "content": "What is $1+1$?"}]
    whole = made.tokenizer.apply_chat_template(
        [*messages, {"role": "assistant", "content": "It is 2."}], tokenize=False
    )
    joined = made.before_answer(messages) + made.answer(messages, "It is 2.")
    assert made.encode(whole)[: len(joined)] == joined


def test_a_thought_is_opened_once_and_kept() -> None:
    made = chat("thinking")
    messages = [{"role": "user", "content": "?"}]
    prompt = made.decode(made.before_answer(messages))
    assert prompt == "<|User|>?<|Assistant|><think>\n"
    answer = made.decode(made.answer(messages, "<think>\n1+1\n</think>\n\n2"))
    assert answer == "1+1\n</think>\n\n2<|end|>"
    assert made.decode(made.answer(messages, "no thought")) == "no thought<|end|>"


def test_system_prompt_and_instruction_stand_where_they_should_once() -> None:
    made = chat("chatml", system="Be brief.", instruction="Box it.")
    text = made.decode(made.prompt("1+1?"))
    assert text == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n1+1?\nBox it.<|im_end|>\n<|im_start|>assistant\n"
    )
    own = [{"role": "system", "content": "Own."}, {"role": "user", "content": "1+1? Box it."}]
    assert made.conversation(own) == own


def test_a_template_that_has_no_system_role_says_so() -> None:
    with pytest.raises(ConfigError, match=r"task.chat: the chat template refuses a conversation of system, user"):
        chat("mistral", system="Be brief.").prompt("?")


def test_without_a_template_a_prompt_is_text() -> None:
    made = Chat(tokenizer(None), None, "Answer:")
    assert made.decode(made.prompt("1+1?")) == "1+1?\nAnswer:\n"
    assert made.eos == made.tokenizer.eos_token_id == made.pad


def test_special_tokens_count_as_one_and_foreign_ids_are_no_text() -> None:
    made = chat("chatml")
    assert made.encode("<|im_end|>") == (made.eos,)
    assert made.decode([*made.encode("ab"), made.vocab_size, made.vocab_size + 5]) == "ab"
    assert made.decode(made.encode("∑ é \n")) == "∑ é \n"


def test_a_tokenizer_comes_from_a_folder_and_a_template_from_a_file(tmp_path: Path) -> None:
    save_model(tmp_path / "model")
    (tmp_path / "own.jinja").write_text("{% for m in messages %}Q: {{ m.content }}<|im_end|>A:{% endfor %}")

    def of(folder: str | None, template: str | None) -> Chat:
        return Chat.of(ChatConfig(folder, None, None, template, 100))

    assert of(str(tmp_path / "model"), None).prompt("x") == chat("chatml").prompt("x")
    own = of(str(tmp_path / "model"), str(tmp_path / "own.jinja"))
    assert own.decode(own.prompt("x")) == "Q: x<|im_end|>A:"
    with pytest.raises(ConfigError, match=r"task.chat.tokenizer=null: set model.path"):
        of(None, None)
