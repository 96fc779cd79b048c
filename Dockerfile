# The command `roformer-keras` with TensorFlow, for `serve`:
#   docker build -t roformer-keras .
#   docker run -p 8000:8000 -e ROFORMER_KERAS_API_KEY=secret roformer-keras \
#       serve roformer-sim-char --host 0.0.0.0
FROM python:3.11-slim
RUN useradd --create-home user
WORKDIR /src
COPY pyproject.toml setup.cfg README.md LICENSE ./
COPY roformer_keras roformer_keras
RUN pip install --no-cache-dir '.[tensorflow,serve]' && rm -rf /src/*
USER user
WORKDIR /home/user
EXPOSE 8000
HEALTHCHECK --start-period=120s CMD \
    python -c "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/health')"
ENTRYPOINT ["roformer-keras"]
CMD ["serve", "roformer-sim-char", "--host", "0.0.0.0"]
