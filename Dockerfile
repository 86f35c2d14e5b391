# Airflow with the project in it: the components of docker-compose.yml run from this one image, of about 1.2 GB.
# The versions are those of requirements-image.txt, held against their hashes. No registry of images could be asked for
# the base's digest where this was written, so hold it where you build (docs/production.md):
#   docker build --build-arg PYTHON=python:3.11-slim-bookworm@sha256:…
ARG PYTHON=python:3.11-slim-bookworm

FROM ${PYTHON} AS build
RUN apt-get update \
    && apt-get install -y --no-install-recommends openjdk-17-jdk-headless \
    && rm -rf /var/lib/apt/lists/*
# Of Java what Spark's driver and executors need.
RUN jlink --strip-debug --no-man-pages --no-header-files --compress 2 --output /opt/java --add-modules \
java.base,java.compiler,java.desktop,java.instrument,java.logging,java.management,java.naming,java.net.http,java.prefs,java.rmi,java.scripting,java.security.jgss,java.security.sasl,java.sql,java.transaction.xa,java.xml,java.xml.crypto,jdk.attach,jdk.crypto.cryptoki,jdk.crypto.ec,jdk.httpserver,jdk.incubator.vector,jdk.jfr,jdk.management,jdk.naming.dns,jdk.net,jdk.nio.mapmode,jdk.security.auth,jdk.security.jgss,jdk.unsupported,jdk.zipfs
RUN python -m venv --without-pip /opt/venv
WORKDIR /src
# Alone before the code, so that a change of code does not install 1 GB again.
COPY requirements-image.txt docker/lean ./
RUN pip --python /opt/venv/bin/python install --no-cache-dir --no-compile --require-hashes -r requirements-image.txt \
    && ./lean /opt/venv
COPY . ./
RUN pip --python /opt/venv/bin/python install --no-cache-dir --no-deps .

FROM ${PYTHON}
RUN apt-get update \
    && apt-get install -y --no-install-recommends curl procps \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 50000 --gid 0 --home-dir /opt/airflow airflow \
    # A volume that is mounted here takes on this owner, so that Airflow and Spark (both 50000:0) may write.
    && install -d -o 50000 -g 0 -m 2775 /opt/redrive /opt/redrive/var /opt/redrive/state /opt/airflow /opt/airflow/logs
COPY --from=build /opt/java /opt/java
COPY --from=build /opt/venv /opt/venv
COPY --chown=50000:0 config /opt/redrive/config
COPY --chown=50000:0 dags /opt/redrive/dags
COPY --chown=50000:0 sql /opt/redrive/sql

USER airflow
WORKDIR /opt/redrive
ENV PATH=/opt/venv/bin:/opt/java/bin:/usr/local/bin:/usr/bin:/bin \
    JAVA_HOME=/opt/java \
    REDRIVE_HOME=/opt/redrive \
    AIRFLOW_HOME=/opt/airflow \
    AIRFLOW__CORE__DAGS_FOLDER=/opt/redrive/dags
ENTRYPOINT ["airflow"]
