# Airflow with the project in it: the components of docker-compose.yml run from this one image.
# The version of Airflow is that of requirements.txt; a test holds it.
FROM apache/airflow:3.3.2-python3.11

USER root
# Spark's driver runs beside the task and needs Java 17 or 21, whichever this Debian calls its default.
RUN apt-get update \
    && apt-get install -y --no-install-recommends default-jre-headless \
    && rm -rf /var/lib/apt/lists/* \
    # A volume that is mounted here takes on this owner, so that Airflow and Spark (both 50000:0) may write.
    && install -d -o 50000 -g 0 -m 2775 /opt/redrive /opt/redrive/var /opt/redrive/state /opt/airflow/logs

USER airflow
WORKDIR /opt/redrive
# Alone before the code, so that a change of code does not install 2 GB again.
COPY --chown=50000:0 requirements.txt ./
RUN pip install --no-cache-dir --require-hashes -r requirements.txt
COPY --chown=50000:0 . ./
RUN pip install --no-cache-dir --no-deps -e . && python -m redrive.dev.class_archive

ENV REDRIVE_HOME=/opt/redrive \
    AIRFLOW__CORE__DAGS_FOLDER=/opt/redrive/dags \
    AIRFLOW__CORE__PLUGINS_FOLDER=/opt/redrive/plugins
