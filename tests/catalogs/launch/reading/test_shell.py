"""Shell text as commands, compared with what a shell would run."""

from __future__ import annotations

import shlex
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from catalogs.errors import InputError
from catalogs.launch.reading.shell import read_script, unset_variables


def words(text: str, **variables: str) -> list[list[str]]:
    return [list(command.words) for command in read_script(text, variables).commands]


@given(st.lists(st.text(st.characters(blacklist_categories=("Cs", "Cc")), min_size=1), min_size=1, max_size=5))
def test_quoted_words_come_back(given_words: list[str]) -> None:
    """A command of quoted words is read as these words (a first word such as A=1 would be an assignment)."""
    assert [c.words for c in read_script(shlex.join(["run", *given_words])).commands] == [("run", *given_words)]


SCRIPTS = {
    "quotes": """printf '%s\\n' a 'b c' "d e" f\\ g '{"k": "v"}' "say \\"hi\\"" """,
    "continuation": "printf '%s\\n' a \\\n  b \\\n  c # comment\n",
    "variables": 'A=1; B="x y"; export C=$A$B\nprintf \'%s\\n\' $A "$B" $B "${C}z" "${NOTSET:-d}" ${A:+yes}',
    "empty array": 'NONE=()\nprintf \'%s\\n\' a "${NONE[@]}" "" b',
    "arrays": 'ARGS=(--a "b c")\nARGS+=(--d)\nprintf \'%s\\n\' "${ARGS[@]}" end',
    "conditions": (
        'N=4\nif [ "$N" -eq 4 ] && [ -z "$NOTSET" ]; then X=four; elif [ 1 -eq 1 ]; then X=else1; else X=other; fi\n'
        'if [[ "$N" == "5" || "$N" -gt 3 ]]; then Y=big; fi\nif [ "$N" != 4 ]; then X=wrong; fi\nprintf \'%s\\n\' $X'
    ),
    "or": "if [ a = b ] || [ c = c ]; then X=1; else X=2; fi; printf '%s\\n' $X",
    "sums": "N=3\nprintf '%s\\n' $((N * 8 + 2)) $((10 - N - 2)) $(( N > 2 ? 7 : 9 )) $((7 / 2))",
    "heredoc": "cat > /dev/null <<EOF\nnot: a command\nEOF\nprintf '%s\\n' done",
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_words_are_those_of_a_shell(name: str) -> None:
    found = [command for command in words(SCRIPTS[name]) if command[0] == "printf"]
    ran = subprocess.run(["bash", "-c", SCRIPTS[name]], capture_output=True, text=True, timeout=10, check=False)
    assert found[-1][2:] == ran.stdout.splitlines()


def test_files_of_here_documents_are_kept() -> None:
    script = read_script("N=8\ncat > /tmp/c.yaml <<EOF\nsize: $N\nEOF\ncat <<'EOF' >> /tmp/c.yaml\nmore: 1\nEOF\n")
    assert script.files == {"c.yaml": "size: 8\nmore: 1\n"}


def test_what_is_not_set_stays() -> None:
    assert words('vllm serve "$MODEL" -tp $TP') == [["vllm", "serve", "${MODEL}", "-tp", "${TP}"]]
    assert unset_variables("a${MODEL}b") == ["MODEL"]
    assert words('vllm serve "$MODEL"', MODEL="m") == [["vllm", "serve", "m"]]


def test_variables_under_an_unknown_condition_are_named() -> None:
    script = read_script('if grep -q x file; then EP="--ep"; fi\nvllm serve m $EP')
    assert script.conditional == {"EP"}
    assert [list(c.words) for c in script.commands if c.words[0] == "vllm"] == [["vllm", "serve", "m", "--ep"]]


def test_environment_of_a_command() -> None:
    found = read_script("export A=1\nB=2\nC=3 vllm serve m").commands[-1]
    assert dict(found.environment) == {"A": "1", "C": "3"}


@pytest.mark.parametrize("text", ["vllm serve 'm", 'vllm serve "m', "vllm serve ${m"])
def test_open_quotes_and_brackets_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="must close its"):
        read_script(text)


def test_output_of_commands_can_be_stated() -> None:
    """A stated variable replaces the output of a command; a value that the script knows takes precedence over it."""
    script = "N=$(nvidia-smi -L | wc -l)\nM=`hostname`\nK=3\nrun $N $M $K"
    assert words(script, N="2", M="node1", K="9") == [["run", "2", "node1", "3"]]
    assert "nvidia-smi" in " ".join(words(script)[0])


def test_commands_of_loops_are_marked() -> None:
    script = read_script("a\nfor i in 0 1; do b $i; done\nwhile true; do c; done\ne")
    found = {command.words[0]: command.in_loop for command in script.commands}
    assert found == {"a": False, "b": True, "c": True, "e": False}
