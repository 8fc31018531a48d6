# The environment of every command: `docker build --tag nystromformer .`
#   CPU only:  docker build --tag nystromformer --build-arg BASE_IMAGE=ubuntu:24.04 --build-arg TORCH_INDEX_URL=... .
#              with the index of torch's CPU builds; that of other CUDA builds goes with a base that suits them
# Ubuntu 24.04 and Debian 12 serve as bases.
#
# torch 2.13.0's wheels are built for CUDA 13.0 and bring its libraries (cuda-toolkit 13.0.3, cuDNN, NCCL) and Triton
# with them. So the small "base" flavour is enough; the NVIDIA runtime adds the driver's part. The base also sets
# NVIDIA_VISIBLE_DEVICES and NVIDIA_DRIVER_CAPABILITIES, and refuses to start on a driver that is too old for CUDA 13.0.
ARG BASE_IMAGE=nvidia/cuda:13.0.3-base-ubuntu24.04

# A stage of its own, so that another version of another requirement does not install torch again, which is the bulk.
# An entry begins at the margin, and its hashes and comments are indented below it.
FROM ${BASE_IMAGE} AS locks
COPY requirements.lock /
RUN awk '/^[^ #]/ { of_torch = /^(torch|triton|cuda-[a-z0-9-]+|nvidia-[a-z0-9-]+)==/ } \
        { print > (of_torch ? "/torch.lock" : "/others.lock") }' /requirements.lock

FROM ${BASE_IMAGE}
LABEL org.opencontainers.image.title="nystromformer" \
      org.opencontainers.image.description="Self-attention in O(n) by the Nyström method: pretraining, fine-tuning, measurements" \
      org.opencontainers.image.licenses="MIT"

# The compiler and Python.h are not for building: Triton's launcher and torch.compile call them at run time.
# No versions: a distribution's release replaces them by corrected ones only, and drops the old from its archive.
# hadolint ignore=DL3008
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends \
        ca-certificates g++ gcc libc6-dev python3 python3-dev python3-venv \
    && apt-get clean \
    && rm -rf /var/lib/apt/lists/*

RUN python3 -m venv /opt/venv
ENV PATH=/opt/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin

# Other indexes than pip's own, where one is needed. They stay readable in `docker history`: no passwords here.
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
# Empty: pip's index, whose torch is the CUDA build. Another index has other builds, whose hashes the lock does not know:
# from it come torch and the libraries of GPUs that this build names, none for a CPU build. Those need nothing else.
ARG TORCH_INDEX_URL=
# Without test suites (torch's own are 80 MB) and static libraries, which nothing here imports or links.
COPY --from=locks /torch.lock /opt/nystromformer/
RUN if [ -n "${TORCH_INDEX_URL}" ]; then \
        pip install --no-cache-dir --no-deps --index-url "${TORCH_INDEX_URL}" \
            "$(grep --only-matching '^torch==[^ ]*' /opt/nystromformer/torch.lock)" \
        && python -c 'import importlib.metadata as m; \
            [print(n) for n in m.requires("torch") if n.startswith(("cuda-", "nvidia-", "triton", "pytorch-triton"))]' \
            > /tmp/libraries.txt \
        && if [ -s /tmp/libraries.txt ]; then \
            pip install --no-cache-dir --index-url "${TORCH_INDEX_URL}" --requirement /tmp/libraries.txt; \
        fi \
        && rm /tmp/libraries.txt; \
    else \
        pip install --no-cache-dir --no-deps --require-hashes --requirement /opt/nystromformer/torch.lock; \
    fi \
    && find /opt/venv \( -type d \( -name test -o -name tests \) -o -name '*.a' \) -prune -exec rm -rf {} +

# Each file by its hash, and nothing that the lock does not name.
COPY --from=locks /others.lock /opt/nystromformer/
RUN pip install --no-cache-dir --no-deps --require-hashes --requirement /opt/nystromformer/others.lock \
    && find /opt/venv \( -type d \( -name test -o -name tests \) -o -name '*.a' \) -prune -exec rm -rf {} + \
    && python -c 'import torch'

# What an editable install comes to, without a build: Python finds what is in /code, be it the copy below or a clone that
# is mounted over it.
RUN mkdir /code \
    && echo /code > "$(python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/nystromformer.pth"

# Where the commands look for what `docker run --volume` mounts. No VOLUME instruction: containers that mount only some
# of these would leave an anonymous volume behind for each of the others.
# The home is writable for any user, because files in mounted folders should belong to whoever runs the container.
RUN mkdir /model /dataset /glue /imdb /wikihop /documents /data-preprocessing \
    && mkdir --mode=1777 /home/nystrom
# USER and LOGNAME: torch.compile asks for the user's name, and a user that is only a number has none in /etc/passwd.
# No bytecode: it would lie in the mounted clone, and compiling all of /code takes a fraction of a second.
ENV HOME=/home/nystrom \
    USER=nystrom \
    LOGNAME=nystrom \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    TRITON_CACHE_DIR=/home/nystrom/.cache/triton \
    TORCHINDUCTOR_CACHE_DIR=/home/nystrom/.cache/torchinductor \
    HF_HOME=/home/nystrom/.cache/huggingface \
    MPLCONFIGDIR=/home/nystrom/.cache/matplotlib

# No ENTRYPOINT: `docker run ... nystromformer /bin/bash -c "..."` names its own command.
CMD ["/bin/bash"]

# Last, so that a change of the code rebuilds nothing else.
COPY LICENSE /opt/nystromformer/
COPY data-preprocessing /data-preprocessing
COPY code /code
# Files have the modes that they have in the clone, where others may not be allowed to read them.
RUN chmod -R a+rX /data-preprocessing /code

# Or any other user with `docker run --user "$(id -u):$(id -g)"`.
ARG UID=1000
ARG GID=1000
USER ${UID}:${GID}
