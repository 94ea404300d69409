FROM python:3.13.16-slim-bookworm AS build

ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
WORKDIR /src
COPY pyproject.toml README.md LICENSE constraints.txt ./
# The build backend is pinned like everything else, so the wheel is built without isolation.
RUN python -m pip install -c constraints.txt hatchling
COPY everlong ./everlong
RUN python -m pip wheel --no-deps --no-build-isolation --wheel-dir /wheels .
# The wheel is installed by path: by name, pip could prefer a release from PyPI. Only binary wheels:
# the image has no compiler, and no setup script of a dependency runs.
RUN python -m venv --without-pip /opt/everlong \
    && python -m pip --python /opt/everlong/bin/python install --only-binary=:all: \
    -c constraints.txt "$(echo /wheels/everlong-*.whl)[admin,agent,encryption]"

FROM python:3.13.16-slim-bookworm

# The ids are fixed, so that a volume written by one image can be read by the next. The directory
# exists in the image so that a new named volume takes over its owner.
RUN groupadd --gid 10001 everlong \
    && useradd --uid 10001 --gid 10001 --home-dir /var/lib/everlong --no-create-home \
    --shell /usr/sbin/nologin everlong \
    && install -d -o 10001 -g 10001 -m 0750 /var/lib/everlong
COPY --from=build /opt/everlong /opt/everlong
ENV PATH=/opt/everlong/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1

USER 10001:10001
WORKDIR /var/lib/everlong
ENTRYPOINT ["everlong"]
CMD ["--help"]
