"""GLUE to the launcher and the reports."""

from nystromformer.tasks.declared import Data, Task

TASK = Task(
    command="glue",
    does="Fine-tune a pretrained model on GLUE",
    data=Data("glue_dataset_folder", "--glue", "glue", has_hub=True),
    results="glue/*/*",
    columns={
        "glue/SST-2": "SST-2",
        "glue/MRPC": "MRPC (F1 / accuracy)",
        "glue/QNLI": "QNLI",
        "glue/QQP": "QQP (F1 / accuracy)",
        "glue/MNLI": "MNLI m / mm",
        "glue/CoLA": "CoLA (Matthews)",
        "glue/STS-B": "STS-B (correlation)",
        "glue/RTE": "RTE",
        "glue/WNLI": "WNLI",
    },
)
