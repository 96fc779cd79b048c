# The command `roformer-keras` with TensorFlow, for `serve`:
#   docker build -t roformer-keras .
#   docker run -p 8000:8000 -e ROFORMER_KERAS_API_KEY=secret roformer-keras \
#       serve roformer-sim-char --host 0.0.0.0
FROM python:3.11-slim
RUN useradd --create-home user
WORKDIR /src
COPY pyproject.toml setup.cfg setup.py README.md LICENSE ./
COPY roformer_keras roformer_keras
# The version without its v, since the folder that has its tag is not copied. Without
# this argument it is that of pyproject.toml.
ARG VERSION
RUN SETUPTOOLS_SCM_PRETEND_VERSION_FOR_ROFORMER_KERAS=$VERSION \
    pip install --no-cache-dir '.[tensorflow,serve]' && rm -rf /src/*
USER user
WORKDIR /home/user
EXPOSE 8000
# The port is that of the command that runs, of which process 1 has the words. The page
# is there while the queue is full, when /health is 503.
HEALTHCHECK --start-period=120s CMD python -c "import re, urllib.request; \
    words = open('/proc/1/cmdline').read(); \
    port = re.search(r'--port[=\0](\d+)', words); \
    urllib.request.urlopen(f'http://127.0.0.1:{port[1] if port else 8000}/')"
ENTRYPOINT ["roformer-keras"]
# Without a key, of which the server warns: one that is written here would be the same
# in every copy of the image. Give it when a container starts, as above.
CMD ["serve", "roformer-sim-char", "--host", "0.0.0.0"]
