# One task of a training cluster.
#
#   docker build -t steadfast .
#   docker run --rm -v "$PWD/runs:/runs" steadfast --config=configs/digits.py --run_dir=/runs/digits
#
# For GPUs: docker build --build-arg EXTRAS='[gpu]' -t steadfast-gpu .

FROM python:3.11.13-slim-bookworm AS build
ARG EXTRAS=""
RUN python -m venv /opt/steadfast
ENV PATH=/opt/steadfast/bin:$PATH
WORKDIR /src
COPY . .
# setup.py holds the version ranges.
# hadolint ignore=DL3013
RUN pip install --no-cache-dir ".${EXTRAS}"

FROM python:3.11.13-slim-bookworm
# The same number on every machine, so that files on a shared volume belong to one user.
RUN useradd --uid 1000 --create-home steadfast \
    && install -d -o steadfast -g steadfast /runs
COPY --from=build /opt/steadfast /opt/steadfast
# Unbuffered: the last lines before a kill must reach the log.
ENV PATH=/opt/steadfast/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    TF_CPP_MIN_LOG_LEVEL=3
# A number: Kubernetes checks runAsNonRoot without reading the image's user names.
USER 1000
WORKDIR /home/steadfast
# exec form: SIGTERM must reach the task, which then saves its state.
ENTRYPOINT ["python", "-m", "trainer.task"]
CMD ["--help"]
