# For instructors; a student's build of the course comes without this file.

FOLDER ?=
OUT    ?= grades.csv

## FOLDER=...     submitted notebooks for make grade, OUT=... its table (default: grades.csv)

student: $(stamp) ## build dist/student.zip, the course without solutions
	@$(py) scripts/editions.py student

instructor: $(stamp) ## build dist/instructor.zip: solutions, expected answers, lesson plans
	@$(py) scripts/editions.py instructor

grade: $(stamp) ## grade a folder of submitted notebooks into a CSV
	@$(py) scripts/grade.py "$(FOLDER)" --out "$(OUT)"

.PHONY: student instructor grade
