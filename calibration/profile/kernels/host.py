"""Work of the host: tokenising, detokenising, one HTTP request, and copies with each page size.

Tokenising and detokenising use the `tokenizers` library where it is installed, with a byte-level BPE that is trained
here; the number of tokens determines the time. The HTTP round trip uses Python's server and client on the loopback,
which is a lower bound of what an API server adds. An engine's scheduler step can be measured only in the engine, by
`calibrate verify`.
"""

from __future__ import annotations

import importlib
import mmap
import threading
from functools import lru_cache, partial
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, Final

import numpy as np

from calibration.profile.kernels.inputs import DoesNotFit, Unavailable
from calibration.profile.machine.device import ProfiledDevice
from calibration.profile.machine.timing import Call, Work
from calibration.profile.session.shape import CHECKS, Shape
from catalogs.units import GIB, KIB, MIB

#: Tokens of the texts that are tokenised and detokenised.
TOKENS: Final = (32, 512)

#: Words of the vocabulary of the tokeniser. A judgement: small, so that training it takes little time.
VOCABULARY: Final = 2048

WORDS: Final = 4000  # words of the text on which the vocabulary is trained

COPY_BYTES: Final = (MIB, 64 * MIB)

PAGES: Final = ("4 KB", "2 MB transparent", "2 MB reserved", "1 GB reserved")

#: Directions of copies.
TO_DEVICE, TO_HOST, ON_HOST = "host to device", "device to host", "host to host"

#: Flag of Linux's mmap(2) for huge pages, which Python does not define.
MAP_HUGETLB: Final = 0x40000

#: Bits by which the logarithm of the page size is shifted in these flags (MAP_HUGE_SHIFT).
HUGE_SHIFT: Final = 26

#: Advice of Linux's madvise(2) to use huge pages, which not every Python defines.
MADV_HUGEPAGE: Final = 14

#: Advice of Linux's madvise(2) to use none.
MADV_NOHUGEPAGE: Final = 15


def shapes() -> list[Shape]:
    """Return the shapes of the host's work on text and HTTP requests."""
    found = [Shape.of("host", CHECKS, kind=k, tokens=t) for k in ("tokenise", "detokenise") for t in TOKENS]
    return [*found, Shape.of("host", CHECKS, kind="http round trip", tokens=1)]


def page_shapes(device: ProfiledDevice) -> list[Shape]:
    """Return copies between host pages; on a GPU they are between host pages and the device, in both directions."""
    ways = (TO_DEVICE, TO_HOST) if device.is_cuda else (ON_HOST,)
    copies = [(pages, size) for pages in PAGES for size in COPY_BYTES if "1 GB" not in pages or size == COPY_BYTES[-1]]
    kinds = [(f"{way}, {pages} pages", size) for way in ways for pages, size in copies]
    return [Shape.of("pages", CHECKS, kind=kind, message_bytes=int(size)) for kind, size in kinds]


def work(shape: Shape, device: ProfiledDevice) -> Work:  # noqa: ARG001 (the signature of all families)
    """Return tokenising, detokenising, or an HTTP round trip.

    Raises:
        Unavailable: If no tokenizer is installed.
    """
    kind = shape["kind"]
    if kind == "http round trip":
        return Work([_round_trip()], "http.server on the loopback", graph=False)
    tokenizer, text = _tokenizer()
    ids = tokenizer.encode(text).ids[: shape["tokens"]]
    piece = tokenizer.decode(ids)
    call = partial(tokenizer.encode, piece) if kind == "tokenise" else partial(tokenizer.decode, ids)
    return Work([call], "tokenizers, byte-level BPE", graph=False)


@lru_cache(maxsize=1)
def _tokenizer() -> tuple[Any, str]:
    """Return a byte-level BPE tokenizer trained on invented words, and a text of such words."""
    try:
        lib: Any = importlib.import_module("tokenizers")
    except ImportError:
        raise Unavailable("the tokenizers library is not installed") from None
    draw = np.random.default_rng(0)
    letters = np.array(list("etaoinshrdlucmfwypvbgkjqxz"))
    words = ["".join(draw.choice(letters, int(n))) for n in draw.integers(2, 9, 600)]
    text = " ".join(draw.choice(np.array(words), WORDS))
    tokenizer = lib.Tokenizer(lib.models.BPE())
    tokenizer.pre_tokenizer = lib.pre_tokenizers.ByteLevel()
    tokenizer.decoder = lib.decoders.ByteLevel()
    options = {"initial_alphabet": lib.pre_tokenizers.ByteLevel.alphabet(), "show_progress": False}
    tokenizer.train_from_iterator([text], lib.trainers.BpeTrainer(vocab_size=VOCABULARY, **options))
    return tokenizer, text


class _Handler(BaseHTTPRequestHandler):
    """Answers in one segment and at once.

    A reply in two small segments waits for the client's delayed acknowledgement of the first one, 40 ms on Linux.
    """

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1  # headers and body leave together, when the request is done

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        body = b'{"choices": [{"text": "a"}]}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None: ...


@lru_cache(maxsize=1)
def _round_trip() -> Call:
    """Return a POST of a small JSON body over a persistent connection to a server in a thread of this process."""
    server = HTTPServer(("127.0.0.1", 0), _Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    connection = HTTPConnection("127.0.0.1", server.server_address[1], timeout=5)
    body = b'{"prompt": "a", "max_tokens": 1}'

    def call() -> bytes:
        connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        return connection.getresponse().read()

    return call


def page_copy(shape: Shape, device: ProfiledDevice) -> Work:
    """Return a copy between host memory with one page size and a GPU, or within such memory.

    On a GPU the host memory is locked (cudaHostRegister), as engines do with swap space and offloaded blocks, so that
    the GPU copies it itself. Where the driver refuses this, the copy is a pageable one, as the name of its kernel says.

    Raises:
        DoesNotFit: If the host has too little memory.
        Unavailable: If the system grants no such pages.
    """
    way, _, words = str(shape["kind"]).partition(", ")
    pages, size = words.removesuffix(" pages"), int(shape["message_bytes"])
    if not device.is_cuda:
        source, target = (_mapped(device, pages, size) for _ in range(2))
        return Work([lambda: target.copy_(source)], "memory copy", graph=False)
    host, is_locked = _locked(device, pages, size)
    remote = device.torch.empty(size, dtype=device.torch.uint8, device="cuda")
    source, target = (host, remote) if way == TO_DEVICE else (remote, host)
    kernel = "pinned copy" if is_locked else "pageable copy"
    return Work([lambda: target.copy_(source, non_blocking=is_locked)], kernel, graph=False)


#: Host memory that the driver knows, with whether it is locked. It is kept, because it must not be unmapped in use.
_KNOWN_TO_DRIVER: Final[dict[tuple[str, int], tuple[Any, bool]]] = {}


def _locked(device: ProfiledDevice, pages: str, size: int) -> tuple[Any, bool]:
    """Return host memory with one page size, and whether the driver has locked it."""
    if (pages, size) not in _KNOWN_TO_DRIVER:
        memory = _mapped(device, pages, size)
        status = device.torch.cuda.cudart().cudaHostRegister(memory.data_ptr(), memory.numel(), 0)
        _KNOWN_TO_DRIVER[pages, size] = memory, int(status) == 0
    return _KNOWN_TO_DRIVER[pages, size]


def _mapped(device: ProfiledDevice, pages: str, size: int) -> Any:
    """Return a byte tensor over anonymous memory with one page size."""
    page = {"2": 2 * MIB, "1": GIB}.get(pages[0], 4 * KIB)
    length = int(-(-size // page) * page)
    if length > 0.5 * device.host_free_bytes():
        raise DoesNotFit(f"needs {length / 1e9:.2g} GB of host memory")
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    if pages.endswith("reserved"):
        flags |= MAP_HUGETLB | (int(page).bit_length() - 1) << HUGE_SHIFT
    try:
        memory = mmap.mmap(-1, length, flags=flags)
        if not pages.endswith("reserved"):
            memory.madvise(MADV_HUGEPAGE if page > 4 * KIB else MADV_NOHUGEPAGE)
    except (OSError, ValueError) as error:
        raise Unavailable(f"the system grants no {pages} pages ({error})") from None
    return device.torch.frombuffer(memory, dtype=device.torch.uint8)[:size].random_(0, 255)
