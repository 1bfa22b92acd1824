"""Package `steadfast-tf`: trains Keras models on many machines with TensorFlow.

Every range is one that the tests have run with: TensorFlow and Keras change details that
`trainer/compat.py` relies on between minor versions, so they are pinned to one each.
"""

from setuptools import setup

TENSORFLOW = ">=2.21,<2.22"

setup(
    name="steadfast-tf",
    version="0.1.0",
    description="Distributed training of Keras models that survives, resumes and publishes exactly",
    license="Apache-2.0",
    license_files=["LICENSE"],
    python_requires=">=3.11,<3.14",
    packages=[
        "configs",
        "export",
        "input_pipeline",
        "input_pipeline.datasets",
        "input_pipeline.datasets.digits",
        "input_pipeline.datasets.fashion_mnist",
        "input_pipeline.sources",
        "trainer",
        "trainer.models",
        "trainer.monitor",
    ],
    package_data={"": ["*.csv.gz"]},
    install_requires=[
        "absl-py>=2,<3",
        "array_record>=0.8,<0.9",
        # tfds 4.9.10 imports it without asking for it.
        "importlib_resources>=6",
        "keras>=3.15,<3.16",
        "ml_collections>=1.1,<2",
        "numpy>=2,<3",
        f"tensorflow{TENSORFLOW}",
        "tensorflow-datasets>=4.9.10,<4.10",
        # TensorFlow 2.21 does not depend on it, and without it tf.summary raises.
        "tensorboard>=2.20,<2.22",
    ],
    extras_require={
        "gpu": [f"tensorflow[and-cuda]{TENSORFLOW}"],
        "test": ["mypy>=2,<3", "pytest>=9,<10", "ruff>=0.17,<0.18"],
    },
)
